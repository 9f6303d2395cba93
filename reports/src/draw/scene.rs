//! A picture as a list of marks, in pixels from the top left, written as SVG or as PNG.

use std::fmt::Write as _;

use plotters::backend::BitMapBackend;
use plotters::drawing::IntoDrawingArea;
use plotters::element::{Circle, PathElement, Polygon, Rectangle, Text};
use plotters::style::text_anchor::{HPos, Pos, VPos};
use plotters::style::{Color, FontStyle, IntoFont, RGBColor, ShapeStyle, TextStyle};

use super::{font, palette, png};
use crate::activity::Colour;

/// Where a text stands against its point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// The colour of words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ink {
    /// On the ground.
    Plain(Colour),
    /// On a box of a colour, whatever reads best.
    On(Colour),
}

/// One thing in a picture.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Mark {
    /// A filled box; the title shows when pointed at.
    Box { x: f64, y: f64, width: f64, height: f64, fill: Colour, title: Option<String> },
    /// Many boxes of one colour: `(x, y, width, height)`.
    Boxes { fill: Colour, boxes: Vec<(f64, f64, f64, f64)>, title: String },
    /// Words; `y` is the baseline.
    Text { x: f64, y: f64, size: f64, bold: bool, anchor: Anchor, ink: Ink, text: String },
    /// A straight line.
    Line { from: (f64, f64), to: (f64, f64), width: f64, colour: Colour, dashed: bool },
    /// Straight lines from point to point.
    Path { points: Vec<(f64, f64)>, width: f64, colour: Colour, dashed: bool },
    /// A filled polygon that what lies under it shows through; `opacity` is between 0 and 1.
    Area { points: Vec<(f64, f64)>, fill: Colour, opacity: f64 },
    /// Round dots of one colour; the title shows when one is pointed at.
    Dots { points: Vec<(f64, f64)>, radius: f64, fill: Colour, title: String },
}

/// How an entry of a legend looks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Swatch {
    /// A filled box.
    Filled,
    /// A line.
    Line,
}

/// An entry of a legend: a colour and what it stands for.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Key {
    pub(crate) colour: Colour,
    pub(crate) name: String,
    pub(crate) swatch: Swatch,
}

impl Key {
    pub(crate) fn filled(colour: Colour, name: impl Into<String>) -> Self {
        Self { colour, name: name.into(), swatch: Swatch::Filled }
    }
    pub(crate) fn line(colour: Colour, name: impl Into<String>) -> Self {
        Self { colour, name: name.into(), swatch: Swatch::Line }
    }
    /// Whether it is drawn as a line; for templates.
    pub(crate) fn is_line(&self) -> bool {
        self.swatch == Swatch::Line
    }
}

/// A picture.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Scene {
    pub(crate) width: f64,
    pub(crate) height: f64,
    /// What it shows, for those who cannot see it.
    pub(crate) description: String,
    pub(crate) marks: Vec<Mark>,
}

/// A width that words of a size (in pixels) surely fit in.
pub(crate) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.6
}

/// Words cut to a width, with an ellipsis where something is missing.
pub(crate) fn cut(text: &str, width: f64, size: f64) -> String {
    if text_width(text, size) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for character in text.chars() {
        kept.push(character);
        if text_width(&kept, size) + size * 0.6 > width {
            kept.pop();
            break;
        }
    }
    format!("{}\u{2026}", kept.trim_end())
}

impl Mark {
    fn shift(&mut self, right: f64, down: f64) {
        let move_point = |point: &mut (f64, f64)| {
            point.0 += right;
            point.1 += down;
        };
        match self {
            Self::Box { x, y, .. } | Self::Text { x, y, .. } => (*x, *y) = (*x + right, *y + down),
            Self::Boxes { boxes, .. } => boxes.iter_mut().for_each(|b| (b.0, b.1) = (b.0 + right, b.1 + down)),
            Self::Line { from, to, .. } => [from, to].into_iter().for_each(move_point),
            Self::Path { points, .. } | Self::Area { points, .. } | Self::Dots { points, .. } => {
                points.iter_mut().for_each(move_point);
            }
        }
    }
}

impl Scene {
    pub(crate) fn new(width: f64, description: impl Into<String>) -> Self {
        Self { width, height: 0.0, description: description.into(), marks: Vec::new() }
    }
    /// Words at a baseline.
    pub(crate) fn text(&mut self, x: f64, y: f64, size: f64, anchor: Anchor, ink: Ink, text: impl Into<String>) {
        self.marks.push(Mark::Text { x, y, size, bold: false, anchor, ink, text: text.into() });
    }
    /// Bold words at a baseline.
    pub(crate) fn heading(&mut self, x: f64, y: f64, size: f64, text: impl Into<String>) {
        let ink = Ink::Plain(palette::TEXT);
        self.marks.push(Mark::Text { x, y, size, bold: true, anchor: Anchor::Start, ink, text: text.into() });
    }
    /// A line.
    pub(crate) fn line(&mut self, from: (f64, f64), to: (f64, f64), width: f64, colour: Colour) {
        self.marks.push(Mark::Line { from, to, width, colour, dashed: false });
    }

    /// A filled box that says more when pointed at.
    pub(crate) fn filled_box(&mut self, corner: (f64, f64), size: (f64, f64), fill: Colour, title: impl Into<String>) {
        let ((x, y), (width, height)) = (corner, size);
        self.marks.push(Mark::Box { x, y, width, height, fill, title: Some(title.into()) });
    }

    /// With a margin around it and a legend on top, for a picture that leaves the page.
    pub(crate) fn framed(mut self, keys: &[Key]) -> Self {
        const MARGIN: f64 = 16.0;
        const LINE: f64 = 20.0;
        // Places of the legend's entries first: they take as many lines as they need.
        let (mut x, mut line) = (MARGIN, 0.0);
        let mut places = Vec::with_capacity(keys.len());
        for key in keys {
            let width = 17.0 + text_width(&key.name, 12.0) + 14.0;
            if x > MARGIN && x + width > self.width + MARGIN {
                (x, line) = (MARGIN, line + LINE);
            }
            places.push((x, MARGIN + line));
            x += width;
        }
        let legend = if keys.is_empty() { 0.0 } else { line + LINE + 6.0 };
        for mark in &mut self.marks {
            mark.shift(MARGIN, MARGIN + legend);
        }
        for (key, (x, y)) in keys.iter().zip(places) {
            let fill = key.colour;
            let mark = match key.swatch {
                Swatch::Filled => Mark::Box { x, y, width: 12.0, height: 12.0, fill, title: None },
                Swatch::Line => Mark::Box { x, y: y + 4.5, width: 13.0, height: 3.0, fill, title: None },
            };
            self.marks.push(mark);
            self.text(x + 17.0, y + 10.5, 12.0, Anchor::Start, Ink::Plain(palette::TEXT), key.name.clone());
        }
        self.width += 2.0 * MARGIN;
        self.height += 2.0 * MARGIN + legend;
        let (width, height) = (self.width, self.height);
        self.marks.insert(0, Mark::Box { x: 0.0, y: 0.0, width, height, fill: palette::GROUND, title: None });
        self
    }

    /// As an `<svg>` element that stands alone or in a page.
    pub(crate) fn svg(&self) -> String {
        let mut out = String::with_capacity(64 * self.marks.len() + 1024);
        let (width, height) = (Number(self.width), Number(self.height));
        let description = escape(&self.description);
        let _ = writeln!(
            out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" role=\"img\" \
             aria-label=\"{description}\" font-family=\"system-ui,'DejaVu Sans',sans-serif\" font-variant-numeric=\"tabular-nums\">"
        );
        let mut group: Option<Colour> = None;
        for mark in &self.marks {
            let fill = match mark {
                Mark::Box { fill, .. } | Mark::Boxes { fill, .. } => Some(*fill),
                Mark::Area { fill, .. } => Some(*fill),
                Mark::Text { .. } | Mark::Line { .. } | Mark::Path { .. } | Mark::Dots { .. } => None,
            };
            if group != fill {
                if group.is_some() {
                    out.push_str("</g>\n");
                }
                if let Some(fill) = fill {
                    let _ = writeln!(out, "<g fill=\"{}\">", fill.css());
                }
                group = fill;
            }
            write_mark(&mut out, mark);
        }
        if group.is_some() {
            out.push_str("</g>\n");
        }
        out.push_str("</svg>\n");
        out
    }

    /// As a PNG image, `scale` device pixels for each pixel, on light ground.
    pub(crate) fn png(&self, scale: u32) -> Vec<u8> {
        font::register();
        let factor = f64::from(scale);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "pictures are a few thousand pixels"
        )]
        let size = ((self.width * factor).ceil() as u32, (self.height * factor).ceil() as u32);
        let mut pixels = vec![0; 3 * size.0 as usize * size.1 as usize];
        {
            let area = BitMapBackend::with_buffer(&mut pixels, size).into_drawing_area();
            area.fill(&rgb(palette::GROUND)).expect("a buffer takes every pixel");
            for mark in &self.marks {
                draw_mark(&area, mark, factor);
            }
            area.present().expect("a buffer takes every pixel");
        }
        png::encode(size.0, size.1, &pixels)
    }
}

/// A coordinate with at most two decimals and no trailing zeros.
struct Number(f64);
impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = format!("{:.2}", self.0);
        let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
        f.write_str(if text == "-0" { "0" } else { text })
    }
}

/// Text for XML content and attributes.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            c if c.is_control() => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

fn write_mark(out: &mut String, mark: &Mark) {
    // Writing to a string cannot fail.
    let _ = match mark {
        Mark::Box { x, y, width, height, title, .. } => {
            let (x, y, width, height) = (Number(*x), Number(*y), Number(*width), Number(*height));
            let _ = write!(out, "<rect x=\"{x}\" y=\"{y}\" width=\"{width}\" height=\"{height}\"");
            match title {
                Some(title) => writeln!(out, "><title>{}</title></rect>", escape(title)),
                None => writeln!(out, "/>"),
            }
        }
        Mark::Boxes { boxes, title, .. } => {
            out.push_str("<path d=\"");
            for (x, y, width, height) in boxes {
                let tenth = |value: f64| Number((value * 10.0).round() / 10.0);
                let (width, height) = (tenth(width.max(0.1)), tenth(height.max(0.1)));
                let _ = write!(out, "M{} {}h{width}v{height}h-{width}z", tenth(*x), tenth(*y));
            }
            writeln!(out, "\"><title>{}</title></path>", escape(title))
        }
        Mark::Text { x, y, size, bold, anchor, ink, text } => {
            let anchor = match anchor {
                Anchor::Start => "",
                Anchor::Middle => " text-anchor=\"middle\"",
                Anchor::End => " text-anchor=\"end\"",
            };
            let fill = match ink {
                Ink::Plain(colour) => colour.css(),
                Ink::On(colour) => format!("var(--on-{},#{:06x})", colour.variable, palette::on(*colour).0),
            };
            // Words on a box let the pointer through to the box's title.
            let through = if matches!(ink, Ink::On(_)) { " pointer-events=\"none\"" } else { "" };
            let weight = if *bold { " font-weight=\"600\"" } else { "" };
            let (x, y, size) = (Number(*x), Number(*y), Number(*size));
            let text = escape(text);
            writeln!(
                out,
                "<text x=\"{x}\" y=\"{y}\" font-size=\"{size}\"{anchor}{weight}{through} fill=\"{fill}\">{text}</text>"
            )
        }
        Mark::Line { from, to, width, colour, dashed } => {
            let (x1, y1, x2, y2) = (Number(from.0), Number(from.1), Number(to.0), Number(to.1));
            writeln!(
                out,
                "<line x1=\"{x1}\" y1=\"{y1}\" x2=\"{x2}\" y2=\"{y2}\" stroke=\"{}\" stroke-width=\"{}\"{}/>",
                colour.css(),
                Number(*width),
                dash(*dashed)
            )
        }
        Mark::Path { points, width, colour, dashed } => writeln!(
            out,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\" stroke-linejoin=\"round\"{}/>",
            point_list(points),
            colour.css(),
            Number(*width),
            dash(*dashed)
        ),
        Mark::Area { points, opacity, .. } => {
            writeln!(out, "<polygon points=\"{}\" fill-opacity=\"{}\"/>", point_list(points), Number(*opacity))
        }
        Mark::Dots { points, radius, fill, title } => {
            out.push_str(&dots(points, *radius, *fill, title));
            Ok(())
        }
    };
}

/// Dots as one path: a line of no length with round ends is a dot.
fn dots(points: &[(f64, f64)], radius: f64, fill: Colour, title: &str) -> String {
    let (width, fill) = (Number(2.0 * radius), fill.css());
    let mut out = format!("<path stroke=\"{fill}\" stroke-width=\"{width}\" stroke-linecap=\"round\" d=\"");
    let tenth = |value: f64| Number((value * 10.0).round() / 10.0);
    for (x, y) in points {
        let _ = write!(out, "M{} {}h0", tenth(*x), tenth(*y));
    }
    let _ = writeln!(out, "\"><title>{}</title></path>", escape(title));
    out
}

fn dash(dashed: bool) -> &'static str {
    if dashed { " stroke-dasharray=\"4 3\"" } else { "" }
}

fn point_list(points: &[(f64, f64)]) -> String {
    let mut text = String::with_capacity(points.len() * 12);
    for (index, (x, y)) in points.iter().enumerate() {
        let _ = write!(text, "{}{},{}", if index == 0 { "" } else { " " }, Number(*x), Number(*y));
    }
    text
}

fn rgb(colour: Colour) -> RGBColor {
    let (red, green, blue) = colour.rgb();
    RGBColor(red, green, blue)
}

type Bitmap<'a> = plotters::drawing::DrawingArea<BitMapBackend<'a>, plotters::coord::Shift>;

fn draw_mark(area: &Bitmap<'_>, mark: &Mark, factor: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "pictures are a few thousand pixels")]
    let pixel = |value: f64| (value * factor).round() as i32;
    let fill_box = |x: f64, y: f64, width: f64, height: f64, fill: Colour| {
        // The bitmap backend fills both corners: the far one is a pixel less, and nothing vanishes.
        let (left, top) = (pixel(x), pixel(y));
        let (right, bottom) = (pixel(x + width) - 1, pixel(y + height) - 1);
        let corners = [(left, top), (right.max(left), bottom.max(top))];
        area.draw(&Rectangle::new(corners, rgb(fill).filled())).expect("a buffer takes every pixel");
    };
    match mark {
        Mark::Box { x, y, width, height, fill, .. } => fill_box(*x, *y, *width, *height, *fill),
        Mark::Boxes { fill, boxes, .. } => {
            for (x, y, width, height) in boxes {
                fill_box(*x, *y, *width, *height, *fill);
            }
        }
        Mark::Text { x, y, size, bold, anchor, ink, text } => {
            let colour = match ink {
                Ink::Plain(colour) => rgb(*colour),
                Ink::On(colour) => {
                    let [_, red, green, blue] = palette::on(*colour).0.to_be_bytes();
                    RGBColor(red, green, blue)
                }
            };
            let place = match anchor {
                Anchor::Start => HPos::Left,
                Anchor::Middle => HPos::Center,
                Anchor::End => HPos::Right,
            };
            let style = if *bold { FontStyle::Bold } else { FontStyle::Normal };
            let text_style = TextStyle::from((font::FAMILY, size * factor, style).into_font())
                .color(&colour)
                .pos(Pos::new(place, VPos::Center));
            // Words stand on their baseline; their middle is about a third of their size above it.
            let point = (pixel(*x), pixel(y - 0.36 * size));
            area.draw(&Text::new(text.clone(), point, text_style))
                .expect("the embedded font has a glyph for every word");
        }
        Mark::Line { from, to, width, colour, .. } => {
            stroke(area, &[*from, *to], *width, *colour, factor);
        }
        Mark::Path { points, width, colour, .. } => stroke(area, points, *width, *colour, factor),
        Mark::Area { points, fill, opacity } => {
            let points: Vec<(i32, i32)> = points.iter().map(|(x, y)| (pixel(*x), pixel(*y))).collect();
            area.draw(&Polygon::new(points, rgb(*fill).mix(*opacity))).expect("a buffer takes every pixel");
        }
        Mark::Dots { points, radius, fill, .. } => {
            for (x, y) in points {
                let dot = Circle::new((pixel(*x), pixel(*y)), pixel(*radius), rgb(*fill).filled());
                area.draw(&dot).expect("a buffer takes every pixel");
            }
        }
    }
}

fn stroke(area: &Bitmap<'_>, points: &[(f64, f64)], width: f64, colour: Colour, factor: f64) {
    #[expect(clippy::cast_possible_truncation, reason = "pictures are a few thousand pixels")]
    let pixel = |value: f64| (value * factor).round() as i32;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "lines are a few pixels wide")]
    let stroke_width = (width * factor).ceil() as u32;
    let style = ShapeStyle { color: rgb(colour).to_rgba(), filled: true, stroke_width };
    let points: Vec<(i32, i32)> = points.iter().map(|(x, y)| (pixel(*x), pixel(*y))).collect();
    area.draw(&PathElement::new(points, style)).expect("a buffer takes every pixel");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_are_cut() {
        assert_eq!(cut("short", 100.0, 10.0), "short");
        let long = cut(&"x".repeat(100), 100.0, 10.0);
        assert!(long.ends_with('\u{2026}') && text_width(&long, 10.0) <= 100.0, "{long}");
    }
}
