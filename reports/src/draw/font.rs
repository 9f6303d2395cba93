//! The embedded font, registered with plotters before anything is drawn.

use std::sync::Once;

use plotters::style::{FontStyle, register_font};

/// A subset of DejaVu Sans; see `assets/DejaVu-LICENSE.txt`.
static FONT: &[u8] = include_bytes!("../../assets/DejaVuSans-subset.ttf");

/// The family that charts ask for. SVG viewers map it to their own sans-serif.
pub(super) const FAMILY: &str = "sans-serif";

/// Makes the font known; later calls do nothing.
pub(super) fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        for style in [FontStyle::Normal, FontStyle::Bold] {
            assert!(register_font(FAMILY, style, FONT).is_ok(), "the embedded font is not a font");
        }
    });
}
