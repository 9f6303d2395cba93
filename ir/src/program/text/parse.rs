//! Reading the text form of a program.

use std::str::SplitAsciiWhitespace;

use super::{BODY, FIRST_LINE, Header, access_name, recompute_name};
use crate::plan::{Axis, Recompute};
use crate::program::{
    Access, BufferKind, Chunk, CollectiveKind, Direction, Group, HostCopy, Message, Op, Pass, Payload, Peer, Program,
    RankSet, Role, Run, Stream, UnitRange, UnitTensor,
};
use crate::{
    BufferId, Bytes, ChunkId, DeviceId, GroupId, InstructionId, MicrobatchId, Problem, RoleId, StageId, Workload,
};

/// Faults that are told; more are counted.
const SHOWN: usize = 16;
/// The most devices of a placement: more ranks no verified program has.
const MOST_DEVICES: usize = 1 << 24;

/// Reads a program. What it says is not verified: [`crate::VerifiedProgram::new`] does that.
///
/// # Errors
/// Each line that cannot be read, as `line 12`, with what was expected in its place; of many, the first ones and how
/// many more.
pub fn parse(text: &str) -> Result<Program, Vec<Problem>> {
    let lines: Vec<&str> = text.lines().collect();
    if lines.first().map(|line| line.trim_end()) != Some(FIRST_LINE) {
        return Err(vec![
            Problem::new("line 1", format!("is not \"{FIRST_LINE}\""))
                .hint("this is no program, or one of another version"),
        ]);
    }
    // The last such line: a name in the header may hold one too.
    let Some(body) = lines.iter().rposition(|line| line.trim_end() == BODY) else {
        return Err(vec![Problem::new(format!("line {}", lines.len()), format!("the text ends before \"{BODY}\""))]);
    };
    let header = parse_header(&lines[1..body]).map_err(|problem| vec![problem])?;
    let Header { seed, model, workload, layout } = header;
    let Ok(seed) = seed.parse() else {
        return Err(vec![Problem::new("seed", format!("\"{}\" is not a number of 64 bits", seed.escape_default()))]);
    };
    let program = Program {
        model,
        workload: Workload { seed, ..workload },
        layout,
        chunks: Vec::new(),
        groups: Vec::new(),
        roles: Vec::new(),
        placement: Vec::new(),
    };
    let mut reader = Reader { program, next: [0; 5] };
    let mut problems = Vec::new();
    let mut more = 0usize;
    for (index, line) in lines.iter().enumerate().skip(body + 1) {
        if let Err(message) = reader.line(line) {
            if problems.len() < SHOWN {
                problems.push(Problem::new(format!("line {}", index + 1), message));
            } else {
                more += 1;
            }
        }
    }
    if more > 0 {
        problems.push(Problem::new("program", format!("there are {more} more lines that cannot be read")));
    }
    if problems.is_empty() { Ok(reader.program) } else { Err(problems) }
}

fn parse_header(lines: &[&str]) -> Result<Header, Problem> {
    let text = lines.join("\n");
    toml::from_str(&text).map_err(|error| {
        let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
        Problem::new(format!("line {}", 2 + before.matches('\n').count()), error.message().to_owned())
    })
}

struct Reader {
    program: Program,
    /// The next number of each of [`Reader::NUMBERED`]; unreadable lines count.
    next: [u32; 5],
}

impl Reader {
    const NUMBERED: [&str; 5] = ["c", "g", "role", "b", "i"];

    fn line(&mut self, line: &str) -> Result<(), String> {
        let mut words = Words(line.split_ascii_whitespace());
        let Some(name) = words.0.next() else { return Ok(()) };
        let letters = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let misnumbered = self.number(name, letters);
        match letters {
            "c" => self.program.chunks.push(chunk(&mut words)?),
            "g" => {
                let axis = words.one_of("an axis", &Axis::ALL, Axis::name)?;
                words.literal("members")?;
                let members = words.ranks()?;
                words.literal("shifts")?;
                self.program.groups.push(Group { axis, members, shifts: words.ranks()? });
            }
            "placement" if self.program.placement.is_empty() => self.program.placement = words.devices()?,
            "placement" => return Err("a second placement".to_owned()),
            "role" => {
                // An unreadable role still holds the lines that follow.
                self.program.roles.push(Role::new(StageId::new(0), RankSet::default()));
                words.literal("on")?;
                let stage = StageId::new(words.id("s")?);
                words.literal("ranks")?;
                *self.role()? = Role::new(stage, words.ranks()?);
            }
            "b" => {
                let kind = words.one_of("a kind of buffer", &BufferKind::ALL, BufferKind::name)?;
                let bytes = words.bytes()?;
                let resident = words.optional("resident");
                self.role()?.buffer(kind, bytes, resident);
            }
            "i" => instruction(&mut words, self.role()?)?,
            _ => return Err(format!("\"{}\" begins no line of a program", excerpt(name))),
        }
        words.end()?;
        misnumbered
    }
    /// Counts a numbered line and compares its number.
    fn number(&mut self, name: &str, letters: &str) -> Result<(), String> {
        let Some(which) = Self::NUMBERED.iter().position(|one| *one == letters) else { return Ok(()) };
        let expected = format!("{letters}{}", self.next[which]);
        self.next[which] += 1;
        if letters == "role" {
            // Buffers and instructions are numbered in each role.
            self.next[3..].fill(0);
        }
        if name == expected { Ok(()) } else { Err(format!("is {}, but {expected} is next", excerpt(name))) }
    }
    fn role(&mut self) -> Result<&mut Role, String> {
        self.program.roles.last_mut().ok_or_else(|| "comes before the first role".to_owned())
    }
}

fn chunk(words: &mut Words<'_>) -> Result<Chunk, String> {
    words.literal("on")?;
    let stage = StageId::new(words.id("s")?);
    words.literal("layers")?;
    let (first_layer, end) = words.range("")?;
    let layers = end.checked_sub(first_layer).ok_or("layers end before they begin")?;
    words.literal("recompute")?;
    let recompute = words.one_of("a recomputation", &Recompute::ALL, recompute_name)?;
    let recomputed_layers = if words.optional("of") { words.id("")? } else { layers };
    let embedding = words.optional("embedding");
    let head = words.optional("head");
    Ok(Chunk { stage, first_layer, layers, embedding, head, recompute, recomputed_layers })
}

fn instruction(words: &mut Words<'_>, role: &mut Role) -> Result<(), String> {
    let op = op(words)?;
    words.literal("on")?;
    let stream = words.one_of("a stream", &Stream::ALL, Stream::name)?;
    let mut waits = Vec::new();
    if words.optional("wait") {
        for id in words.next("instructions")?.split(',') {
            waits.push(InstructionId::new(number_after(id, "i")?));
        }
    }
    let mut accesses = Vec::new();
    while let Some(word) = words.0.next() {
        let access =
            [Access::Allocate, Access::Use, Access::Free].into_iter().find(|access| access_name(*access) == word);
        let access = access.ok_or_else(|| format!("expected allocate, use or free, found \"{}\"", excerpt(word)))?;
        for id in words.next("buffers")?.split(',') {
            accesses.push((BufferId::new(number_after(id, "b")?), access));
        }
    }
    role.push(op, stream, &waits, &accesses);
    Ok(())
}

fn op(words: &mut Words<'_>) -> Result<Op, String> {
    let word = words.next("an operation")?;
    Ok(match word {
        "compute" => {
            let pass = words.pass()?;
            let chunk = ChunkId::new(words.id("c")?);
            let (start, end) = words.range("u")?;
            Op::Compute { pass, chunk, units: UnitRange { start, end }, microbatch: words.microbatch()? }
        }
        "send" | "receive" => {
            let peer = peer(words.next("a role and a shift")?)?;
            let direction = words.one_of("a direction", &[Direction::Forward, Direction::Backward], Direction::name)?;
            words.literal("after")?;
            let edge = ChunkId::new(words.id("c")?);
            let message = Message { edge, direction, microbatch: words.microbatch()? };
            let bytes = words.bytes()?;
            if word == "send" { Op::Send { peer, message, bytes } } else { Op::Receive { peer, message, bytes } }
        }
        "gradient-norm" => Op::GradientNorm,
        "optimizer" => Op::Optimizer,
        "copy-out" | "copy-in" => {
            let what = if words.optional("optimizer-state") {
                HostCopy::OptimizerState
            } else if words.optional("parameters") {
                HostCopy::Parameters { chunk: ChunkId::new(words.id("c")?), microbatch: words.microbatch()? }
            } else {
                words.literal("activations")?;
                HostCopy::Activations { chunk: ChunkId::new(words.id("c")?), microbatch: words.microbatch()? }
            };
            Op::HostCopy { what, out: word == "copy-out", bytes: words.bytes()? }
        }
        _ => {
            let kind = CollectiveKind::from_name(word);
            let kind = kind.ok_or_else(|| format!("\"{}\" is no operation", excerpt(word)))?;
            let group = GroupId::new(words.id("g")?);
            let payload = payload(words)?;
            Op::Collective { kind, group, payload, bytes: words.bytes()? }
        }
    })
}

/// `role1+8` or `role0-8`.
fn peer(word: &str) -> Result<Peer, String> {
    let fail = || format!("expected a role and a shift such as role1+8, found \"{}\"", excerpt(word));
    let at = word.find(['+', '-']).ok_or_else(fail)?;
    let role = RoleId::new(number_after(&word[..at], "role")?);
    Ok(Peer { role, shift: word[at..].parse().map_err(|_| fail())? })
}

fn payload(words: &mut Words<'_>) -> Result<Payload, String> {
    let word = words.next("what is moved")?;
    Ok(match word {
        "gradients" => Payload::Gradients { chunk: ChunkId::new(words.id("c")?) },
        "parameters" => Payload::Parameters { chunk: ChunkId::new(words.id("c")?) },
        "expert-gradients" => Payload::ExpertGradients { chunk: ChunkId::new(words.id("c")?) },
        "expert-parameters" => Payload::ExpertParameters { chunk: ChunkId::new(words.id("c")?) },
        "unit-parameters" => {
            let (chunk, unit) = (ChunkId::new(words.id("c")?), words.id("u")?);
            let experts = words.optional("experts");
            let microbatch = words.microbatch()?;
            Payload::UnitParameters { chunk, unit, experts, microbatch, pass: words.pass()? }
        }
        "unit-gradients" => {
            let (chunk, unit) = (ChunkId::new(words.id("c")?), words.id("u")?);
            let experts = words.optional("experts");
            Payload::UnitGradients { chunk, unit, experts, microbatch: words.microbatch()? }
        }
        "replicated-gradients" => Payload::ReplicatedGradients,
        "tied-gradients" => Payload::TiedGradients,
        "gradient-norm" => Payload::GradientNorm,
        _ => {
            let tensor = UnitTensor::from_name(word);
            let tensor = tensor.ok_or_else(|| format!("\"{}\" is nothing that a collective moves", excerpt(word)))?;
            let chunk = ChunkId::new(words.id("c")?);
            let unit = words.id("u")?;
            Payload::Activation { tensor, chunk, unit, microbatch: words.microbatch()?, pass: words.pass()? }
        }
    })
}

/// The words of one line.
struct Words<'a>(SplitAsciiWhitespace<'a>);

impl<'a> Words<'a> {
    fn next(&mut self, expected: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("ends where {expected} should be"))
    }
    fn literal(&mut self, word: &str) -> Result<(), String> {
        let found = self.next(&format!("\"{word}\""))?;
        if found == word { Ok(()) } else { Err(format!("expected \"{word}\", found \"{}\"", excerpt(found))) }
    }
    fn optional(&mut self, word: &str) -> bool {
        let mut ahead = self.0.clone();
        let found = ahead.next() == Some(word);
        if found {
            self.0 = ahead;
        }
        found
    }
    fn end(&mut self) -> Result<(), String> {
        self.0.next().map_or(Ok(()), |word| Err(format!("\"{}\" is too much", excerpt(word))))
    }
    fn one_of<T: Copy>(&mut self, what: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T, String> {
        let word = self.next(what)?;
        all.iter().copied().find(|one| name(*one) == word).ok_or_else(|| {
            let names: Vec<&str> = all.iter().map(|one| name(*one)).collect();
            format!("expected {what} ({}), found \"{}\"", names.join(", "), excerpt(word))
        })
    }
    fn pass(&mut self) -> Result<Pass, String> {
        const ALL: [Pass; 5] =
            [Pass::Forward, Pass::Recompute, Pass::Backward, Pass::BackwardInput, Pass::BackwardWeight];
        self.one_of("a pass", &ALL, Pass::name)
    }
    fn id(&mut self, letters: &str) -> Result<u32, String> {
        number_after(self.next(&format!("{letters}<number>"))?, letters)
    }
    fn microbatch(&mut self) -> Result<MicrobatchId, String> {
        self.id("m").map(MicrobatchId::new)
    }
    /// `<letters>2..5`.
    fn range(&mut self, letters: &str) -> Result<(u32, u32), String> {
        let word = self.next("a range")?;
        let fail = || format!("expected a range such as {letters}2..5, found \"{}\"", excerpt(word));
        let (start, end) = word.strip_prefix(letters).and_then(|range| range.split_once("..")).ok_or_else(fail)?;
        Ok((number(start).ok_or_else(fail)?, number(end).ok_or_else(fail)?))
    }
    fn bytes(&mut self) -> Result<Bytes, String> {
        let word = self.next("a number of bytes")?;
        let digits = word.strip_suffix('B').filter(|digits| digits.bytes().all(|b| b.is_ascii_digit()));
        let bytes = digits.and_then(|digits| digits.parse().ok());
        bytes
            .map(Bytes::new)
            .ok_or_else(|| format!("expected a number of bytes such as 1000B, found \"{}\"", excerpt(word)))
    }
    fn ranks(&mut self) -> Result<RankSet, String> {
        let word = self.next("ranks")?;
        if word == "none" {
            return Ok(RankSet::default());
        }
        let runs: Option<Vec<Run>> = word.split(',').map(run).collect();
        runs.and_then(RankSet::from_runs).ok_or_else(|| {
            format!("expected ascending ranks such as 5 or 0..8 or 0..64/8, found \"{}\"", excerpt(word))
        })
    }
    fn devices(&mut self) -> Result<Vec<DeviceId>, String> {
        let word = self.next("devices")?;
        let mut devices = Vec::new();
        for part in word.split(',') {
            let one = run(part).filter(|run| run.stride == 1);
            let one = one.ok_or_else(|| format!("expected devices such as 5 or 0..8, found \"{}\"", excerpt(part)))?;
            if devices.len() + one.count as usize > MOST_DEVICES {
                return Err(format!("more than {MOST_DEVICES} devices"));
            }
            let last = u64::from(one.first) + u64::from(one.count) - 1;
            let last = u32::try_from(last).map_err(|_| format!("devices past {}", u32::MAX))?;
            devices.extend((one.first..=last).map(DeviceId::new));
        }
        Ok(devices)
    }
}

/// `5`, `0..8` or `0..64/8`.
fn run(text: &str) -> Option<Run> {
    let Some((first, rest)) = text.split_once("..") else {
        return Some(Run { first: number(text)?, count: 1, stride: 1 });
    };
    let (end, stride) = rest.split_once('/').unwrap_or((rest, "1"));
    let (first, stride) = (number(first)?, number(stride)?);
    let end: u64 = Some(end).filter(|e| e.bytes().all(|b| b.is_ascii_digit()))?.parse().ok()?;
    let length = end.checked_sub(u64::from(first))?;
    if stride == 0 || !length.is_multiple_of(u64::from(stride)) {
        return None;
    }
    let count = u32::try_from(length / u64::from(stride)).ok().filter(|count| *count >= 1)?;
    Some(Run { first, count, stride })
}

fn number(text: &str) -> Option<u32> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    plain.then(|| text.parse().ok()).flatten()
}

fn number_after(word: &str, letters: &str) -> Result<u32, String> {
    word.strip_prefix(letters)
        .and_then(number)
        .ok_or_else(|| format!("expected {letters}<number>, found \"{}\"", excerpt(word)))
}

fn excerpt(text: &str) -> String {
    text.chars().take(40).flat_map(char::escape_default).collect()
}
