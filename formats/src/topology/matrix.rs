//! The matrix that `nvidia-smi topo -m` prints.
//!
//! Columns are devices (`GPU0` ...), network adapters (`NIC0`, `mlx5_0` ...) and affinities; cells say what a message
//! between two crosses. A matrix with a row, a column or a cell missing is refused: a truncated one describes another
//! machine.

use ir::Problem;

use super::Domains;
use crate::text::{Faults, Line, lines, nearest};

/// The most devices of one matrix; no node sold holds more than 72.
const MOST: usize = 1024;

/// What a message between two devices crosses, best first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Connection {
    /// So many NVLinks bonded.
    NvLink(u32),
    /// At most one PCIe bridge (`PIX`).
    Bridge,
    /// Several PCIe bridges, not the host's (`PXB`).
    Bridges,
    /// A PCIe host bridge, typically the processor (`PHB`).
    Host,
    /// Host bridges of one NUMA node (`NODE`).
    Node,
    /// The link between NUMA nodes (`SYS`; `SOC` in old versions).
    System,
}

impl Connection {
    /// Larger is better.
    const fn rank(self) -> (u8, u32) {
        match self {
            Self::NvLink(count) => (5, count),
            Self::Bridge => (4, 0),
            Self::Bridges => (3, 0),
            Self::Host => (2, 0),
            Self::Node => (1, 0),
            Self::System => (0, 0),
        }
    }
    /// The worse of two.
    fn worse(self, other: Self) -> Self {
        if self.rank() <= other.rank() { self } else { other }
    }
    /// Whether it is NVLink.
    #[must_use]
    pub const fn is_nvlink(self) -> bool {
        matches!(self, Self::NvLink(_))
    }
    /// As the matrix writes it.
    #[must_use]
    pub fn word(self) -> String {
        match self {
            Self::NvLink(count) => format!("NV{count}"),
            Self::Bridge => "PIX".to_owned(),
            Self::Bridges => "PXB".to_owned(),
            Self::Host => "PHB".to_owned(),
            Self::Node => "NODE".to_owned(),
            Self::System => "SYS".to_owned(),
        }
    }
    fn read(word: &str) -> Option<Self> {
        match word {
            "PIX" => Some(Self::Bridge),
            "PXB" => Some(Self::Bridges),
            "PHB" => Some(Self::Host),
            "NODE" => Some(Self::Node),
            "SYS" | "SOC" => Some(Self::System),
            _ => {
                let count: u32 = word.strip_prefix("NV")?.parse().ok()?;
                (1..=MOST_LINKS).contains(&count).then_some(Self::NvLink(count))
            }
        }
    }
}

/// The most NVLinks between two devices; the newest generation has 36.
const MOST_LINKS: u32 = 144;

/// A node as `nvidia-smi topo -m` sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Matrix {
    /// Between devices; symmetric, `None` on the diagonal.
    pub devices: Vec<Vec<Option<Connection>>>,
    /// Names of the network adapters.
    pub adapters: Vec<String>,
    /// Between each device and each adapter.
    pub to_adapters: Vec<Vec<Connection>>,
}

impl Matrix {
    /// Devices joined by NVLink, directly or over others. Where there is no NVLink the node is one domain, joined by PCIe.
    #[must_use]
    pub fn domains(&self) -> Domains {
        let count = self.devices.len();
        let nvlink = |a: usize, b: usize| self.devices[a][b].is_some_and(Connection::is_nvlink);
        let any = (0..count).any(|a| (0..count).any(|b| nvlink(a, b)));
        Domains::components(count, |a, b| !any || nvlink(a, b))
    }

    /// The slowest hop of the best ring over some devices: what bounds their collectives. Up to 16 devices every ring is
    /// looked at; beyond, the slowest connection of any pair stands in, which no ring is slower than.
    ///
    /// # Panics
    /// Unless there are two devices of the matrix.
    #[must_use]
    pub fn ring(&self, members: &[usize]) -> Connection {
        assert!(members.len() >= 2, "a ring of {members:?}");
        let between = |a: usize, b: usize| self.devices[members[a]][members[b]].expect("two devices");
        let count = members.len();
        let mut levels: Vec<Connection> =
            (0..count).flat_map(|a| (0..a).map(move |b| (a, b))).map(|(a, b)| between(a, b)).collect();
        levels.sort_by_key(|level| std::cmp::Reverse(level.rank()));
        levels.dedup();
        let worst = levels.iter().copied().reduce(Connection::worse).expect("a pair");
        if count > 16 {
            return worst;
        }
        let found = levels.iter().find(|level| ring_exists(count, |a, b| between(a, b).rank() >= level.rank()));
        found.copied().unwrap_or(worst)
    }

    /// The nearest adapters of each device, of all that are equally near.
    #[must_use]
    pub fn near_adapters(&self) -> Vec<Vec<usize>> {
        let near = |row: &Vec<Connection>| {
            let best = row.iter().map(|c| c.rank()).max();
            (0..row.len()).filter(|at| Some(row[*at].rank()) == best).collect()
        };
        self.to_adapters.iter().map(near).collect()
    }

    /// Adapters that some device is nearest to: those that carry its traffic, and not the management of the node.
    #[must_use]
    pub fn adapters_in_use(&self) -> usize {
        let mut used = vec![false; self.adapters.len()];
        self.near_adapters().iter().flatten().for_each(|at| used[*at] = true);
        used.iter().filter(|used| **used).count()
    }
}

/// Whether a cycle visits every one of at most 16 members over joined pairs (for two, whether they are joined).
fn ring_exists(count: usize, joined: impl Fn(usize, usize) -> bool) -> bool {
    // ends[set]: where a path from member 0 over exactly this set may end.
    let mut ends = vec![0u32; 1 << count];
    ends[1] = 1;
    for set in 1..1usize << count {
        for last in (0..count).filter(|last| ends[set] >> last & 1 == 1).collect::<Vec<_>>() {
            for next in (0..count).filter(|next| set >> next & 1 == 0) {
                if joined(last, next) {
                    ends[set | 1 << next] |= 1 << next;
                }
            }
        }
    }
    (1..count).any(|last| ends[(1 << count) - 1] >> last & 1 == 1 && joined(last, 0))
}

/// A column of the heading.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Column {
    Device(usize),
    Adapter(String),
    Affinity,
}

/// Reads what `nvidia-smi topo -m` printed. `file_name` is the file as the person named it.
///
/// # Errors
/// Every fault with its line: no heading, columns or rows missing, cells missing or not understood, two cells that
/// contradict each other.
pub fn read(text: &str, file_name: &str) -> Result<Matrix, Vec<Problem>> {
    let mut faults = Faults::new(file_name);
    let plain = without_colours(text);
    let hint = "paste all that `nvidia-smi topo -m` prints, heading and every row included";
    let mut rest = lines(&plain).filter(|line| !line.text.trim().is_empty());
    let Some(heading) = rest.find(|line| line.text.split_whitespace().next().is_some_and(|word| word == "GPU0")) else {
        faults.whole("topology", "has no heading with GPU0 as its first column", hint, text.len());
        return faults.finish(|| unreachable!("a fault was noted"));
    };
    let columns = columns(&heading, &mut faults);
    let body = |line: &Line<'_>| {
        let first = line.text.split_whitespace().next().unwrap_or_default();
        first.starts_with("GPU") || is_adapter(first, &columns)
    };
    // What is not a row ends the matrix: legends and prompts.
    let rows: Vec<Line<'_>> = rest.take_while(body).collect();
    let matrix = cells(&columns, &rows, &mut faults);
    if faults.is_empty() {
        symmetric(&matrix, &rows, &mut faults);
    }
    let devices = columns.iter().filter(|column| matches!(column, Column::Device(_))).count();
    let found = matrix.devices.len();
    if found != devices {
        let message = format!("is truncated: {devices} devices in the heading and {found} rows of devices");
        faults.whole("topology", message, hint, text.len());
    }
    faults.finish(|| matrix)
}

/// The text without the escapes that underline its heading. Places are those of what remains.
fn without_colours(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find("\u{1b}[") {
        plain.push_str(&rest[..at]);
        let escape = &rest[at + 2..];
        let end = escape.find(|c: char| c.is_ascii_alphabetic() || c == '\n').unwrap_or(escape.len());
        rest = escape[end..].strip_prefix(|c: char| c.is_ascii_alphabetic()).unwrap_or(&escape[end..]);
    }
    plain.push_str(rest);
    plain
}

fn columns(heading: &Line<'_>, faults: &mut Faults<'_>) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut words = heading.text.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let second = words.peek().copied().unwrap_or_default();
        match (word, second) {
            ("CPU" | "NUMA", "Affinity") => drop((words.next(), columns.push(Column::Affinity))),
            ("GPU", "NUMA") => drop((words.next(), words.next(), columns.push(Column::Affinity))),
            _ => {
                let devices = columns.iter().filter(|column| matches!(column, Column::Device(_))).count();
                match word.strip_prefix("GPU").map(str::parse::<usize>) {
                    Some(Ok(number)) if number == devices && number < MOST => columns.push(Column::Device(number)),
                    Some(_) => {
                        let hint = Some(format!("the next device is GPU{devices}"));
                        faults.at(heading, format!("`{word}` is out of order"), hint);
                        return columns;
                    }
                    None if word.starts_with("NIC") || word.starts_with("mlx") || word.starts_with("bnxt") => {
                        columns.push(Column::Adapter(word.to_owned()));
                    }
                    None => {
                        let known = ["GPU0", "NIC0", "mlx5_0", "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"];
                        faults.at(heading, format!("unknown column `{word}`"), nearest(word, &known));
                        return columns;
                    }
                }
            }
        }
    }
    columns
}

fn is_adapter(word: &str, columns: &[Column]) -> bool {
    columns.iter().any(|column| matches!(column, Column::Adapter(name) if name == word))
}

/// The cells of every row, as far as they could be read.
fn cells(columns: &[Column], rows: &[Line<'_>], faults: &mut Faults<'_>) -> Matrix {
    let adapters: Vec<String> = columns
        .iter()
        .filter_map(|column| if let Column::Adapter(name) = column { Some(name.clone()) } else { None })
        .collect();
    let mut matrix = Matrix { devices: Vec::new(), adapters, to_adapters: Vec::new() };
    for line in rows {
        let mut words = line.text.split_whitespace();
        let name = words.next().unwrap_or_default();
        let number = matrix.devices.len();
        let wanted = format!("GPU{number}");
        let is_device = name.starts_with("GPU");
        if is_device && name != wanted {
            faults.at(line, format!("`{name}` is out of order"), Some(format!("the next row is {wanted}")));
            return matrix;
        }
        let (mut to_devices, mut to_adapters) = (Vec::new(), Vec::new());
        for column in columns.iter().filter(|column| **column != Column::Affinity) {
            let Some(word) = words.next() else {
                let last = columns.iter().filter(|column| **column != Column::Affinity).count();
                let read = to_devices.len() + to_adapters.len();
                faults.at(line, format!("{name} is cut short: {read} of {last} connections"), None);
                break;
            };
            let own = match column {
                Column::Device(at) => is_device && *at == number,
                Column::Adapter(adapter) => adapter == name,
                Column::Affinity => false,
            };
            let cell = Connection::read(word);
            if (word == "X") != own || (cell.is_none() && !own) {
                let message = if own || word == "X" {
                    format!("`{word}`: X stands where a device meets itself and nowhere else")
                } else {
                    format!("`{word}` is no connection")
                };
                faults.at(line, message, Some("one of NV1 and more, PIX, PXB, PHB, NODE, SYS".to_owned()));
            }
            match column {
                Column::Device(_) => to_devices.push(cell),
                Column::Adapter(_) => to_adapters.extend(cell),
                Column::Affinity => {}
            }
        }
        if is_device {
            matrix.devices.push(to_devices);
            matrix.to_adapters.push(to_adapters);
        }
    }
    matrix
}

/// What a says of b, b says of a.
fn symmetric(matrix: &Matrix, rows: &[Line<'_>], faults: &mut Faults<'_>) {
    for (a, row) in matrix.devices.iter().enumerate() {
        for (b, there) in row.iter().enumerate().take(a) {
            let back = matrix.devices.get(b).and_then(|row| row.get(a)).copied().flatten();
            if let (Some(there), Some(back)) = (*there, back)
                && there != back
            {
                let message = format!("GPU{a} to GPU{b} is {} and back it is {}", there.word(), back.word());
                faults.at(&rows[a], message, None);
            }
        }
    }
}
