//! Colours that are not activities, and the style sheet's variables.

use ir::program::BufferKind;

use crate::activity::{Activity, Colour};

/// Words.
pub(crate) const TEXT: Colour = Colour { variable: "text", light: 0x1b222c, dark: 0xe6eaf0 };
/// Words of less weight.
pub(crate) const MUTED: Colour = Colour { variable: "muted", light: 0x5a6574, dark: 0x9aa6b5 };
/// Lines of a grid.
pub(crate) const GRID: Colour = Colour { variable: "grid", light: 0xd8dde4, dark: 0x38414d };
/// The ground of pictures.
pub(crate) const GROUND: Colour = Colour { variable: "ground", light: 0xffffff, dark: 0x171c23 };
/// The ground of the page.
pub(crate) const PAGE: Colour = Colour { variable: "page", light: 0xf5f6f8, dark: 0x0f1318 };
/// What calls for attention: a limit, a warning.
pub(crate) const ALARM: Colour = Colour { variable: "alarm", light: 0xb41f2b, dark: 0xff7b7b };
/// The ground of a warning.
pub(crate) const ALARM_GROUND: Colour = Colour { variable: "alarm-ground", light: 0xfdecec, dark: 0x3a1d20 };

/// Lines of curves, in order of use.
pub(crate) const CURVES: [Colour; 4] = [
    Colour { variable: "curve-0", light: 0x2f6fc4, dark: 0x5b9bef },
    Colour { variable: "curve-1", light: 0xd96b13, dark: 0xf08c3b },
    Colour { variable: "curve-2", light: 0x008f73, dark: 0x1fb897 },
    Colour { variable: "curve-3", light: 0x7a58c2, dark: 0xa184e7 },
];

/// What is right, or inside a limit: read together with words or place, never by hue alone.
pub(crate) const GOOD: Colour = CURVES[0];
/// What is wrong, or outside a limit.
pub(crate) const BAD: Colour = CURVES[1];

/// A scale from little to much: one hue that darkens, so that it also reads in grey.
pub(crate) const HEAT: [Colour; 9] = [
    Colour { variable: "heat-0", light: 0xf1f7fc, dark: 0x1d2a38 },
    Colour { variable: "heat-1", light: 0xdbe9f6, dark: 0x22384e },
    Colour { variable: "heat-2", light: 0xbfd8ee, dark: 0x284865 },
    Colour { variable: "heat-3", light: 0x9bc3e3, dark: 0x2f5a80 },
    Colour { variable: "heat-4", light: 0x72a9d6, dark: 0x396f9c },
    Colour { variable: "heat-5", light: 0x4a8cc4, dark: 0x4a88ba },
    Colour { variable: "heat-6", light: 0x2b6fac, dark: 0x6aa3d0 },
    Colour { variable: "heat-7", light: 0x16528b, dark: 0x94c1e4 },
    Colour { variable: "heat-8", light: 0x0b3563, dark: 0xc7e0f4 },
];

/// A cell without a value.
pub(crate) const ABSENT: Colour = Colour { variable: "absent", light: 0xeceef1, dark: 0x242a32 };

/// Colours of causes that no activity has.
pub(crate) const LAUNCH: Colour = Colour { variable: "launch", light: 0x9a3b3b, dark: 0xcf6d6d };
pub(crate) const IMBALANCE: Colour = Colour { variable: "imbalance", light: 0xa9b1bd, dark: 0x626d7c };

/// The colour of a kind of buffer.
pub(crate) const fn buffer(kind: BufferKind) -> Colour {
    match kind {
        BufferKind::Weights => Colour { variable: "weights", light: 0x254e86, dark: 0x4f84c9 },
        BufferKind::Gradients => Colour { variable: "gradients", light: 0xc6582a, dark: 0xe57f4d },
        BufferKind::OptimizerState => Colour { variable: "optimizer-state", light: 0x5f6b7a, dark: 0x8d9aab },
        BufferKind::Activations => Colour { variable: "activations", light: 0x2a9d8f, dark: 0x45c4b4 },
        BufferKind::Workspace => Colour { variable: "workspace", light: 0xe3b53f, dark: 0xeec862 },
        BufferKind::Logits => Colour { variable: "logits", light: 0x9b5db5, dark: 0xbd83d6 },
        BufferKind::Communication => Colour { variable: "buffers", light: 0xc94276, dark: 0xe56f9c },
        BufferKind::Reserve => Colour { variable: "reserve", light: 0xb3bbc6, dark: 0x55606f },
    }
}

/// Whether dark words read better than white ones on a ground (relative luminance of WCAG 2.1, by the sRGB weights).
pub(crate) fn wants_dark_words(ground: u32) -> bool {
    let [_, channels @ ..] = ground.to_be_bytes();
    let linear = channels.map(|channel| {
        let c = f64::from(channel) / 255.0;
        c * c * (0.8 + 0.2 * c)
    });
    0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2] > 0.22
}

/// The words' colour on a filled box: `(light theme, dark theme)`.
pub(crate) fn on(colour: Colour) -> (u32, u32) {
    let words = |ground| if wants_dark_words(ground) { 0x12171e } else { 0xffffff };
    (words(colour.light), words(colour.dark))
}

/// The variables of the style sheet: light values, and dark ones for those who prefer them.
pub(crate) fn style_sheet() -> String {
    let mut colours = vec![TEXT, MUTED, GRID, GROUND, PAGE, ALARM, ALARM_GROUND];
    colours.extend(CURVES);
    let mut filled: Vec<Colour> =
        Activity::ALL.into_iter().map(Activity::colour).chain(BufferKind::ALL.into_iter().map(buffer)).collect();
    filled.extend(HEAT);
    filled.extend([ABSENT, LAUNCH, IMBALANCE]);
    let theme = |pick: fn(Colour) -> u32, words: fn((u32, u32)) -> u32| {
        let mut text = String::new();
        for colour in colours.iter().chain(&filled) {
            text.push_str(&format!("--{}:#{:06x};", colour.variable, pick(*colour)));
        }
        for colour in &filled {
            text.push_str(&format!("--on-{}:#{:06x};", colour.variable, words(on(*colour))));
        }
        text
    };
    format!(
        ":root{{color-scheme:light dark;{}}}\n@media (prefers-color-scheme:dark){{:root{{{}}}}}\n",
        theme(|colour| colour.light, |words| words.0),
        theme(|colour| colour.dark, |words| words.1)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_variable_is_its_own() {
        let sheet = style_sheet();
        let light = sheet.split("@media").next().unwrap();
        let mut names: Vec<&str> =
            light.split(';').filter_map(|rule| rule.split_once(":#")).map(|(name, _)| name).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert_eq!(all, 7 + 4 + 2 * (Activity::COUNT + 8 + 9 + 3));
    }

    #[test]
    fn charts_can_tell_their_colours_apart() {
        // A chart's colours are replaced by variables by value, so no two may share a light value.
        let mut values: Vec<u32> = [TEXT, MUTED, GRID, GROUND, ALARM].into_iter().map(|c| c.light).collect();
        values.extend(CURVES.map(|c| c.light));
        values.extend(BufferKind::ALL.map(|kind| buffer(kind).light));
        let all = values.len();
        values.sort_unstable();
        values.dedup();
        assert_eq!(values.len(), all);
    }
}
