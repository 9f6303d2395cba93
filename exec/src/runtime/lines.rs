//! Exchanges of a rank as work of its device's streams.
//!
//! What a rank puts in is copied on the compute stream into a buffer of the exchange, and what it gets out likewise, so that
//! everything else of the rank is touched on one stream only. Between the two copies the buffer belongs to the stream of the
//! exchange. Three events order this:
//!
//! | event | on | what waits for it |
//! |---|---|---|
//! | the buffer is filled | compute | the exchange's stream |
//! | the exchange begins | its own | |
//! | the exchange ended | its own | compute, before the buffer is read and given back |
//!
//! What is in host memory (a norm, heads for other ranks) is written into the buffer and read from it by the host; parts of
//! unequal lengths first tell each other how long they are.

use std::collections::BTreeMap;
use std::sync::Arc;

use ir::program::{CollectiveKind, Payload};

use super::reduce;
use super::script::{EndId, Exchange, Script, Transaction};
use crate::device::{
    Device, DeviceError, Element, Event, Group, Link, Links, Operation, Slice, Stream, read_f32, write_f32, write_u32,
};
use crate::parcels;
use crate::state::{Got, Offered};

/// Which ranks of a program exchange with each other, and on which streams: what has another order has another group.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    all: Vec<Group>,
    /// Of each transaction; none where a rank has only itself to exchange with.
    of: Vec<Option<usize>>,
}

impl Groups {
    pub(super) fn of(script: &Script) -> Self {
        let mut numbers: BTreeMap<(Vec<usize>, Vec<usize>), usize> = BTreeMap::new();
        let mut all: Vec<Group> = Vec::new();
        let of = script.transactions.iter().map(|transaction| {
            let members: Vec<usize> = transaction.ends.iter().map(|end| end.rank).collect();
            if members.iter().all(|&member| member == members[0]) {
                return None;
            }
            let streams = transaction.ends.iter().map(|end| end.stream).collect();
            let number = *numbers.entry((members.clone(), streams)).or_insert_with(|| {
                all.push(Group { members, exchanges: false });
                all.len() - 1
            });
            all[number].exchanges |= matches!(
                transaction.exchange,
                Exchange::Message(_) | Exchange::Collective(CollectiveKind::AllToAll, _)
            );
            Some(number)
        });
        let of = of.collect();
        Self { all, of }
    }
}

/// An exchange that was put on its stream.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) id: EndId,
    stream: Stream,
    link: Option<Arc<dyn Link>>,
    pub(super) began: Event,
    /// When it ended; none while lengths are on their way, and data are still to be sent.
    pub(super) ended: Option<Event>,
    counting: Option<Counting>,
    /// What comes out of it.
    result: Option<Slice>,
    /// Whether the host reads that.
    pub(super) in_host_memory: bool,
    /// How many elements of the result come from each member, where they differ.
    lengths: Option<Vec<usize>>,
    /// Whether it is known to have ended.
    pub(super) passed: bool,
}

/// Lengths of parts on their way.
#[derive(Debug)]
struct Counting {
    event: Event,
    /// How many elements come from each member.
    coming: Slice,
    /// What goes to each.
    parts: Vec<Slice>,
    buffer: Slice,
}

/// One rank's ends of all exchanges of a program.
#[derive(Debug)]
pub(super) struct Lines {
    device: Arc<dyn Device>,
    groups: Arc<Groups>,
    links: Vec<Option<Arc<dyn Link>>>,
    /// Messages of the rank to itself, by transaction.
    to_itself: BTreeMap<usize, Slice>,
}

impl Drop for Lines {
    /// Where a rank's thread unwinds, work that waits for other ranks is ended: the device is waited for when it goes.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.abort();
        }
    }
}

type Outcome<T> = Result<T, DeviceError>;

impl Lines {
    /// Joins the groups that a rank is in; a rank that is alone needs no links.
    pub(super) fn join(
        device: Arc<dyn Device>,
        rank: usize,
        groups: &Arc<Groups>,
        links: Option<&dyn Links>,
    ) -> Outcome<Self> {
        let joined = match links {
            Some(links) => links.join(Arc::clone(&device), rank, &groups.all)?,
            None => Vec::new(),
        };
        Ok(Self { device, groups: Arc::clone(groups), links: joined, to_itself: BTreeMap::new() })
    }

    /// Ends what is under way, for a rank that stops before its end.
    pub(super) fn abort(&self) {
        self.links().for_each(|link| link.abort("the rank has stopped"));
    }

    pub(super) fn device(&self) -> &dyn Device {
        &*self.device
    }

    pub(super) fn links(&self) -> impl Iterator<Item = &Arc<dyn Link>> {
        self.links.iter().flatten()
    }

    fn link(&self, transaction: usize) -> Option<Arc<dyn Link>> {
        let group = self.groups.of[transaction]?;
        Some(Arc::clone(self.links[group].as_ref().expect("a rank that takes part is in the group")))
    }

    /// Whether an end that receives can be put on its stream; a message of the rank to itself must have been sent.
    pub(super) fn can_receive(&self, id: EndId) -> bool {
        self.groups.of[id.transaction].is_some() || self.to_itself.contains_key(&id.transaction)
    }

    /// Puts the sending end of a message, or a collective, on a stream.
    pub(super) fn give(
        &mut self,
        id: EndId,
        transaction: &Transaction,
        stream: Stream,
        offered: Offered<'_>,
    ) -> Outcome<Open> {
        let in_host_memory = matches!(offered, Offered::Host(_));
        let open = match transaction.exchange {
            Exchange::Message(_) => {
                let buffer = self.fill(&offered)?;
                self.put(id, stream, in_host_memory, |lines, link| match link {
                    Some(link) => {
                        link.send(stream, buffer, 1)?;
                        // Its own stream is the last that reads it.
                        lines.device.release(stream, buffer).map(|()| None)
                    }
                    None => {
                        lines.to_itself.insert(id.transaction, buffer);
                        Ok(None)
                    }
                })?
            }
            Exchange::Collective(CollectiveKind::AllToAll, _) => self.give_parts(id, stream, offered.host())?,
            Exchange::Collective(kind, payload) => {
                let buffer = match (payload, &offered) {
                    (Payload::GradientNorm, Offered::Host(halves)) => self.fill_with(reduce::join(halves))?,
                    _ => self.fill(&offered)?,
                };
                let result = self.room(kind, transaction.ends.len(), buffer)?;
                self.put(id, stream, in_host_memory, |lines, link| {
                    let Some(link) = link else { return Ok(Some(buffer)) };
                    match kind {
                        CollectiveKind::AllReduce => link.all_reduce(stream, buffer)?,
                        CollectiveKind::ReduceScatter => link.reduce_scatter(stream, buffer, result)?,
                        CollectiveKind::AllGather => link.all_gather(stream, buffer, result)?,
                        CollectiveKind::AllToAll => unreachable!("above"),
                    }
                    if result != buffer {
                        lines.device.release(stream, buffer)?;
                    }
                    Ok(Some(result))
                })?
            }
        };
        Ok(open)
    }

    /// Puts the receiving end of a message of so many elements on a stream.
    pub(super) fn receive(
        &mut self,
        id: EndId,
        stream: Stream,
        length: usize,
        element: Option<Element>,
    ) -> Outcome<Open> {
        let (in_host_memory, element) = (element.is_none(), element.unwrap_or(Element::F32));
        let own = self.to_itself.remove(&id.transaction);
        let buffer = match own {
            Some(buffer) => buffer,
            // Memory in the order of the exchange's own stream, which has nothing to wait for.
            None => self.device.allocate(stream, element, length)?,
        };
        self.put_next(id, stream, in_host_memory, |_, link| {
            if let Some(link) = link {
                link.receive(stream, 0, buffer)?;
            }
            Ok(Some(buffer))
        })
    }

    /// A buffer with what a rank puts in, filled on the compute stream.
    fn fill(&self, offered: &Offered<'_>) -> Outcome<Slice> {
        let on = Stream::COMPUTE;
        match *offered {
            Offered::Host(values) => {
                let buffer = self.device.allocate(on, Element::F32, values.len())?;
                write_f32(&*self.device, on, values, buffer)?;
                Ok(buffer)
            }
            Offered::Device(slices, element) => {
                let length = slices.iter().map(|slice| slice.length).sum();
                let buffer = self.device.allocate(on, element, length)?;
                let mut start = 0;
                for &from in slices {
                    let to = buffer.part(start, from.length);
                    start += from.length;
                    if from.element == element {
                        self.device.copy(on, from, to)?;
                    } else {
                        self.device.run(on, &Operation::Cast { from, to })?;
                    }
                }
                Ok(buffer)
            }
            Offered::Zeros(length, element) => {
                let buffer = self.device.allocate(on, element, length)?;
                self.device.zero(on, buffer)?;
                Ok(buffer)
            }
        }
    }

    fn fill_with(&self, number: f64) -> Outcome<Slice> {
        let buffer = self.device.allocate(Stream::COMPUTE, Element::F64, 1)?;
        self.device.write(Stream::COMPUTE, &number.to_le_bytes(), buffer)?;
        Ok(buffer)
    }

    /// Where the result of a collective goes.
    fn room(&self, kind: CollectiveKind, members: usize, buffer: Slice) -> Outcome<Slice> {
        let length = match kind {
            CollectiveKind::AllReduce => return Ok(buffer),
            _ if members == 1 => return Ok(buffer),
            CollectiveKind::ReduceScatter => {
                assert_eq!(buffer.length % members, 0, "{} elements over {members} members", buffer.length);
                buffer.length / members
            }
            CollectiveKind::AllGather | CollectiveKind::AllToAll => buffer.length * members,
        };
        self.device.allocate(Stream::COMPUTE, buffer.element, length)
    }

    /// Lets a stream wait for what is on the compute stream, and puts an exchange there.
    fn put(
        &mut self,
        id: EndId,
        stream: Stream,
        in_host_memory: bool,
        exchange: impl FnOnce(&mut Self, Option<&dyn Link>) -> Outcome<Option<Slice>>,
    ) -> Outcome<Open> {
        self.follow(Stream::COMPUTE, stream)?;
        self.put_next(id, stream, in_host_memory, exchange)
    }

    /// Puts an exchange on a stream.
    fn put_next(
        &mut self,
        id: EndId,
        stream: Stream,
        in_host_memory: bool,
        exchange: impl FnOnce(&mut Self, Option<&dyn Link>) -> Outcome<Option<Slice>>,
    ) -> Outcome<Open> {
        let link = self.link(id.transaction);
        let began = self.device.record(stream)?;
        let result = exchange(self, link.as_deref())?;
        let ended = Some(self.device.record(stream)?);
        let (counting, lengths, passed) = (None, None, false);
        Ok(Open { id, stream, link, began, ended, counting, result, in_host_memory, lengths, passed })
    }

    /// What is put on `after` from now on comes after what is on `before`.
    fn follow(&self, before: Stream, after: Stream) -> Outcome<()> {
        let event = self.device.record(before)?;
        self.device.wait(after, event)?;
        self.device.forget(event)
    }

    /// Tells the others how long the parts of a bundle are; [`poll`](Self::poll) sends them.
    fn give_parts(&mut self, id: EndId, stream: Stream, bundle: &[f32]) -> Outcome<Open> {
        let link = self.link(id.transaction);
        let Some(to) = &link else {
            let buffer = self.fill(&Offered::Host(&bundle[1..]))?;
            let open = self.put(id, stream, true, |_, _| Ok(Some(buffer)))?;
            return Ok(Open { lengths: Some(vec![buffer.length]), ..open });
        };
        let members = self.groups.all[self.groups.of[id.transaction].expect("a group")].members.len();
        let lengths: Vec<usize> = bundle[..members].iter().copied().map(parcels::whole).collect();
        let numbers: Vec<u32> = bundle[..members].iter().map(|length| length.to_bits()).collect();
        let on = Stream::COMPUTE;
        let (going, coming) =
            (self.device.allocate(on, Element::U32, members)?, self.device.allocate(on, Element::U32, members)?);
        write_u32(&*self.device, on, &numbers, going)?;
        let buffer = self.fill(&Offered::Host(&bundle[members..]))?;
        self.follow(on, stream)?;
        let began = self.device.record(stream)?;
        let each = |of: Slice| (0..members).map(|member| of.part(member, 1)).collect::<Vec<_>>();
        to.all_to_all(stream, &each(going), &each(coming))?;
        self.device.release(stream, going)?;
        let mut start = 0;
        let parts = lengths.iter().map(|&length| {
            start += length;
            buffer.part(start - length, length)
        });
        let counting = Some(Counting { event: self.device.record(stream)?, coming, parts: parts.collect(), buffer });
        let (ended, result, lengths, passed) = (None, None, None, false);
        Ok(Open { id, stream, link, began, ended, counting, result, in_host_memory: true, lengths, passed })
    }

    /// Goes on with what has come on its way since this was last asked, and looks for errors. `true` if anything has.
    pub(super) fn poll(&self, open: &mut Open) -> Outcome<bool> {
        if let Some(counting) = open.counting.take_if(|_| open.ended.is_none()) {
            if !self.device.passed(counting.event)? {
                open.counting = Some(counting);
                open.link.as_ref().map_or(Ok(()), |link| link.poll())?;
                return Ok(false);
            }
            self.send_parts(open, counting)?;
            return Ok(true);
        }
        let ended = open.ended.expect("an exchange that counts nothing ends");
        if open.passed || !self.device.passed(ended)? {
            open.link.as_ref().filter(|_| !open.passed).map_or(Ok(()), |link| link.poll())?;
            return Ok(false);
        }
        open.passed = true;
        Ok(true)
    }

    fn send_parts(&self, open: &mut Open, counting: Counting) -> Outcome<()> {
        let Counting { event, coming, parts, buffer } = counting;
        let bytes = self.device.read(open.stream, coming)?;
        let lengths: Vec<usize> = bytes.as_chunks().0.iter().map(|&n| u32::from_le_bytes(n) as usize).collect();
        let result = self.device.allocate(open.stream, Element::F32, lengths.iter().sum())?;
        let mut start = 0;
        let to = lengths.iter().map(|&length| {
            start += length;
            result.part(start - length, length)
        });
        let to: Vec<Slice> = to.collect();
        open.link.as_ref().expect("a group").all_to_all(open.stream, &parts, &to)?;
        self.device.release(open.stream, buffer)?;
        self.device.release(open.stream, coming)?;
        self.device.forget(event)?;
        open.ended = Some(self.device.record(open.stream)?);
        (open.result, open.lengths) = (Some(result), Some(lengths));
        Ok(())
    }

    /// Hands what came out of an exchange to `copy`, which puts copies of it on the compute stream, and gives its buffer back.
    /// What the host reads must have passed.
    pub(super) fn take(&self, open: &mut Open, copy: impl FnOnce(Got<'_>)) -> Outcome<()> {
        let (Some(result), Some(ended)) = (open.result.take(), open.ended) else {
            panic!("{:?} brings nothing", open.id);
        };
        self.device.wait(Stream::COMPUTE, ended)?;
        if open.in_host_memory {
            assert!(open.passed, "the host reads what is still on its way");
            match (result.element, &open.lengths) {
                (Element::F64, _) => {
                    let bytes = self.device.read(open.stream, result)?;
                    let number = f64::from_le_bytes(bytes.try_into().expect("the bytes of one FP64"));
                    copy(Got::Host(&reduce::split(number)));
                }
                (_, None) => copy(Got::Host(&read_f32(&*self.device, open.stream, result)?)),
                (_, Some(lengths)) => {
                    let mut bundle = Vec::new();
                    parcels::begin(&mut bundle, lengths.iter().copied());
                    bundle.extend(read_f32(&*self.device, open.stream, result)?);
                    copy(Got::Host(&bundle));
                }
            }
        } else {
            copy(Got::Device(result));
        }
        self.device.release(Stream::COMPUTE, result)
    }
}
