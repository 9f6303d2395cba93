//! A page of figures, tables and pictures: what the scoreboard, the waterfall, sweeps, differences, candidates and sizing
//! are written as.
//!
//! One [`Document`] becomes a self-contained HTML page, Markdown beside which its pictures lie as SVG files, and tables for
//! a terminal; all three say the same.

use askama::Template;

use crate::draw::palette;
use crate::draw::scene::{Key, Scene};
use crate::tables::{Table, markdown_table};

/// A page.
#[derive(Clone, PartialEq, Debug)]
pub struct Document {
    /// Its heading.
    pub title: String,
    /// A sentence or two under it; may be empty.
    pub description: String,
    /// What a reader must know before trusting a number, shown first.
    pub warnings: Vec<String>,
    /// Key figures, shown large.
    pub figures: Vec<Figure>,
    /// The page's parts, in order.
    pub sections: Vec<Section>,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

/// One key figure.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Figure {
    /// What it is.
    pub name: String,
    /// Values and whose they are.
    pub values: Vec<(String, String)>,
    /// Small print; may be empty.
    pub note: String,
    /// Whether it calls for attention.
    pub alarm: bool,
}

impl Figure {
    /// A figure of one value.
    pub fn new(name: impl Into<String>, value: impl Into<String>, note: impl Into<String>) -> Self {
        let values = vec![(value.into(), String::new())];
        Self { name: name.into(), values, note: note.into(), alarm: false }
    }
}

/// A part of a page.
#[derive(Clone, PartialEq, Debug)]
pub struct Section {
    /// Its heading.
    pub heading: String,
    /// How to read it; may be empty.
    pub note: String,
    /// What it holds, in order.
    pub blocks: Vec<Block>,
}

impl Section {
    /// A section without blocks.
    pub fn new(heading: impl Into<String>, note: impl Into<String>) -> Self {
        Self { heading: heading.into(), note: note.into(), blocks: Vec::new() }
    }
    /// Whether tables need their titles because there are several.
    pub(crate) fn names_tables(&self) -> bool {
        self.blocks.iter().filter(|block| matches!(block, Block::Table(_))).count() > 1
    }
}

/// One thing in a section.
#[derive(Clone, PartialEq, Debug)]
pub enum Block {
    /// A table.
    Table(Table),
    /// A table that is folded away at first, and that a terminal does not print.
    LongTable(Table),
    /// A picture.
    Picture(Picture),
    /// A paragraph.
    Words(String),
}

/// A picture with its legend.
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// The file that Markdown expects it in, such as `errors.svg`.
    pub file: String,
    /// Its heading; may be empty.
    pub heading: String,
    /// How to read it; may be empty.
    pub note: String,
    pub(crate) keys: Vec<Key>,
    pub(crate) scene: Scene,
}

impl Picture {
    pub(crate) fn new(file: impl Into<String>, heading: impl Into<String>, scene: Scene, keys: Vec<Key>) -> Self {
        Self { file: file.into(), heading: heading.into(), note: String::new(), keys, scene }
    }
    pub(crate) fn noted(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }
    /// The picture alone, with legend and margin, on light ground.
    #[must_use]
    pub fn svg(&self) -> String {
        self.scene.clone().framed(&self.keys).svg()
    }
    /// The picture alone as a PNG image, two device pixels for each pixel; the same bytes on every machine.
    #[must_use]
    pub fn png(&self) -> Vec<u8> {
        self.scene.clone().framed(&self.keys).png(2)
    }
}

#[derive(Template)]
#[template(path = "document.html")]
struct Page<'a> {
    document: &'a Document,
    style: String,
}

impl Document {
    /// As one HTML page that needs nothing else: no script, no network, no font.
    ///
    /// # Panics
    /// Only if the page's template is at odds with itself, which its tests exclude.
    #[must_use]
    pub fn html(&self) -> String {
        let style = palette::style_sheet() + include_str!("../templates/report.css");
        Page { document: self, style }.render().expect("a page of strings has a text form")
    }

    /// As GitHub-flavoured Markdown; pictures are referred to by their file names, see [`Self::pictures`].
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n", one_line(&self.title));
        if !self.description.is_empty() {
            out.push_str(&format!("\n{}\n", self.description));
        }
        for warning in &self.warnings {
            out.push_str(&format!("\n> **Warning:** {}\n", one_line(warning)));
        }
        if !self.figures.is_empty() {
            out.push('\n');
        }
        for figure in &self.figures {
            let values = figure.values.iter().map(|(value, whose)| format!("**{value}** {whose}").trim().to_owned());
            let values: Vec<String> = values.collect();
            let note = if figure.note.is_empty() { String::new() } else { format!(" ({})", figure.note) };
            out.push_str(&one_line(&format!("- {}: {}{note}", figure.name, values.join(", "))));
            out.push('\n');
        }
        for section in &self.sections {
            out.push_str(&format!("\n## {}\n", one_line(&section.heading)));
            if !section.note.is_empty() {
                out.push_str(&format!("\n{}\n", section.note));
            }
            for block in &section.blocks {
                out.push_str(&block_markdown(block, section.names_tables()));
            }
        }
        if !self.assumptions.is_empty() {
            let mut table = Table::new("What was assumed", &["what", "value"]);
            self.assumptions.iter().for_each(|(name, value)| table.row(vec![name.clone(), value.clone()]));
            out.push_str(&format!("\n## {}\n\n{}", table.title, markdown_table(&table)));
        }
        if !self.command.is_empty() {
            out.push_str(&format!("\nMade with `{}`.\n", one_line(&self.command)));
        }
        out
    }

    /// The pictures: file name and SVG text, in the page's order.
    #[must_use]
    pub fn pictures(&self) -> Vec<(String, String)> {
        let blocks = self.sections.iter().flat_map(|section| &section.blocks);
        blocks
            .filter_map(|block| match block {
                Block::Picture(picture) => Some((picture.file.clone(), picture.svg())),
                Block::Table(_) | Block::LongTable(_) | Block::Words(_) => None,
            })
            .collect()
    }

    /// The tables that a terminal prints, in the page's order.
    #[must_use]
    pub fn tables(&self) -> Vec<&Table> {
        let blocks = self.sections.iter().flat_map(|section| &section.blocks);
        blocks
            .filter_map(|block| match block {
                Block::Table(table) => Some(table),
                Block::LongTable(_) | Block::Picture(_) | Block::Words(_) => None,
            })
            .collect()
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

fn block_markdown(block: &Block, named: bool) -> String {
    match block {
        Block::Table(table) if named => format!("\n### {}\n\n{}", one_line(&table.title), markdown_table(table)),
        Block::Table(table) => format!("\n{}", markdown_table(table)),
        Block::LongTable(table) => {
            let title = crate::draw::scene::escape(&table.title);
            format!("\n<details><summary>{title}</summary>\n\n{}\n</details>\n", markdown_table(table))
        }
        Block::Picture(picture) => {
            let name = if picture.heading.is_empty() { &picture.scene.description } else { &picture.heading };
            let note = if picture.note.is_empty() { String::new() } else { format!("\n{}\n", picture.note) };
            format!("\n![{}]({})\n{note}", one_line(name), picture.file)
        }
        Block::Words(words) => format!("\n{words}\n"),
    }
}
