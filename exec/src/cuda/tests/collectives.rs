//! Groups of ranks on the emulated machine: ranks are threads, each with a GPU.

use std::sync::Barrier;
use std::time::Duration;

use super::machine::{self, answer};
use super::skip;
use crate::cuda::{Communicator, CudaDevice, CudaOptions, Reduction, UniqueId};
use crate::device::*;
use crate::kernels::{narrow, testing::Cases};

const DEADLINE: Duration = Duration::from_secs(20);

fn gpu(rank: usize) -> CudaDevice {
    let ordinal = u32::try_from(rank % 2).expect("small");
    CudaDevice::open(CudaOptions { ordinal, cache: None }).expect("an emulated GPU")
}

/// Runs a rank per thread.
fn ranks<R: Send>(size: usize, id: UniqueId, run: impl Fn(usize, &CudaDevice, &Communicator) -> R + Sync) -> Vec<R> {
    let together = Barrier::new(size);
    let rank = |rank| {
        let (run, together) = (&run, &together);
        move || {
            let gpu = gpu(rank);
            let comm = Communicator::join(&gpu, id, rank, size, DEADLINE).expect("a group");
            let result = run(rank, &gpu, &comm);
            // No rank leaves while another still reads what it sent.
            together.wait();
            result
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..size).map(|number| scope.spawn(rank(number))).collect();
        threads.into_iter().map(|thread| thread.join().expect("a rank")).collect()
    })
}

fn upload(gpu: &CudaDevice, element: Element, values: &[f32]) -> Slice {
    let slice = gpu.allocate(Stream::COMMUNICATION, element, values.len()).expect("memory");
    write_f32(gpu, Stream::COMMUNICATION, values, slice).expect("a write");
    slice
}

fn download(gpu: &CudaDevice, slice: Slice) -> Vec<f32> {
    read_f32(gpu, Stream::COMMUNICATION, slice).expect("a read")
}

/// Whole numbers, whose sums are exact in BF16 too.
fn numbers(cases: &mut Cases, count: usize) -> Vec<f32> {
    (0..count).map(|_| narrow(cases.size(0, 16) as f64)).collect()
}

fn check_reductions(element: Element, size: usize, count: usize, seed: &mut Cases) {
    let inputs: Vec<Vec<f32>> = (0..size).map(|_| numbers(seed, count * size)).collect();
    let total = |at: usize| inputs.iter().map(|input| input[at]).sum::<f32>();
    let largest = |at: usize| inputs.iter().map(|input| input[at]).fold(f32::MIN, f32::max);
    let id = Communicator::unique_id().expect("an id");
    let s = Stream::COMMUNICATION;
    let results = ranks(size, UniqueId::from_bytes(*id.bytes()), |rank, gpu, comm| {
        let mut out = Vec::new();
        for op in [Reduction::Sum, Reduction::Maximum, Reduction::Mean] {
            let all = upload(gpu, element, &inputs[rank]);
            comm.all_reduce(gpu, s, op, all).expect("an all-reduce");
            let whole = upload(gpu, element, &inputs[rank]);
            let part = upload(gpu, element, &vec![0.0; count]);
            comm.reduce_scatter(gpu, s, op, whole, part).expect("a reduce-scatter");
            out.push((download(gpu, all), download(gpu, part)));
        }
        let from = upload(gpu, element, &inputs[rank][..count]);
        let to = upload(gpu, element, &vec![0.0; count * size]);
        comm.all_gather(gpu, s, from, to).expect("an all-gather");
        comm.poll().expect("a healthy group");
        (out, download(gpu, to))
    });
    let mean = |at: usize| {
        let mean = total(at) / narrow(size as f64);
        if element == Element::Bf16 { half::bf16::from_f32(mean).to_f32() } else { mean }
    };
    let whole = |f: &dyn Fn(usize) -> f32| (0..count * size).map(f).collect::<Vec<f32>>();
    let wanted = [whole(&total), whole(&largest), whole(&mean)];
    let gathered: Vec<f32> = inputs.iter().flat_map(|input| input[..count].to_vec()).collect();
    for (rank, (reduced, all)) in results.into_iter().enumerate() {
        for ((reduced, part), wanted) in reduced.into_iter().zip(&wanted) {
            assert_eq!((&reduced, &part[..]), (wanted, &wanted[rank * count..][..count]), "rank {rank} of {size}");
        }
        assert_eq!(all, gathered, "rank {rank} of {size}");
    }
}

/// Every pair exchanges another number of elements, some none.
fn check_exchanges(size: usize) {
    let count = |from: usize, to: usize| (from * 3 + to * 5) % 7;
    let value = |from: usize, to: usize, i: usize| narrow((from * 100 + to * 10 + i) as f64);
    let id = Communicator::unique_id().expect("an id");
    ranks(size, id, |rank, gpu, comm| {
        let part =
            |to| upload(gpu, Element::F32, &(0..count(rank, to)).map(|i| value(rank, to, i)).collect::<Vec<_>>());
        let from: Vec<Slice> = (0..size).map(part).collect();
        let to: Vec<Slice> = (0..size).map(|peer| upload(gpu, Element::F32, &vec![0.0; count(peer, rank)])).collect();
        comm.all_to_all(gpu, Stream::COMMUNICATION, &from, &to).expect("an all-to-all");
        for (peer, slice) in to.into_iter().enumerate() {
            let wanted: Vec<f32> = (0..count(peer, rank)).map(|i| value(peer, rank, i)).collect();
            assert_eq!(download(gpu, slice), wanted, "from {peer} to {rank}");
        }
        // Around a ring.
        let (sent, got) = (upload(gpu, Element::F32, &[narrow(rank as f64)]), upload(gpu, Element::F32, &[0.0]));
        comm.send(gpu, Stream::COMMUNICATION, sent, (rank + 1) % size).expect("a send");
        comm.receive(gpu, Stream::COMMUNICATION, (rank + size - 1) % size, got).expect("a receive");
        assert_eq!(download(gpu, got), [narrow(((rank + size - 1) % size) as f64)]);
    });
}

/// Even and odd ranks, in falling order, and one rank that is in neither.
fn check_splits(size: usize) {
    let id = Communicator::unique_id().expect("an id");
    let members = |color: usize| (0..size - 1).filter(move |rank| rank % 2 == color);
    ranks(size, id, |rank, gpu, comm| {
        let color = (rank + 1 < size).then(|| u32::try_from(rank % 2).expect("small"));
        let of = members(rank % 2).count();
        let place = members(rank % 2).filter(|&other| other > rank).count();
        let part = comm.split(color, size - rank, place, of).expect("a split");
        assert_eq!(part.is_some(), color.is_some());
        let Some(part) = part else { return };
        assert_eq!((part.rank(), part.size()), (place, of));
        let from = upload(gpu, Element::F32, &[narrow(rank as f64)]);
        let to = upload(gpu, Element::F32, &vec![0.0; of]);
        part.all_gather(gpu, Stream::COMMUNICATION, from, to).expect("an all-gather");
        let mut wanted: Vec<f32> = members(rank % 2).map(|rank| narrow(rank as f64)).collect();
        wanted.reverse();
        assert_eq!(download(gpu, to), wanted);
    });
}

#[test]
#[ignore = "run by groups_of_ranks_exchange_what_they_should"]
fn groups() {
    let mut done = 0;
    for size in [1, 2, 4] {
        for element in [Element::F32, Element::Bf16] {
            Cases::run(2, |cases| {
                let count = cases.size(1, 20);
                check_reductions(element, size, count, cases);
                done += 1;
            });
        }
        check_exchanges(size);
        check_splits(size + 1);
    }
    answer(&done.to_string());
}

#[test]
fn groups_of_ranks_exchange_what_they_should() {
    let Some([whole, _]) = machine::build() else {
        return skip("groups_of_ranks_exchange_what_they_should", "there is no compiler for C++ (c++)");
    };
    let answer = machine::run(whole, "collectives::groups", &[]);
    assert!(answer.ok, "{}", answer.words);
    assert_eq!(answer.words, "12");
}

/// Joins a group of `MEMBERS`, alone, and does something; what it ends with is the answer.
#[test]
#[ignore = "run by a_group_that_fails_says_why_and_ends"]
fn alone() {
    let members = std::env::var("MEMBERS").expect("run by its parent").parse().expect("a number");
    let run = || -> Result<String, DeviceError> {
        let gpu = CudaDevice::open(CudaOptions::default())?;
        let id = Communicator::unique_id()?;
        let comm = Communicator::join(&gpu, id, 0, members, Duration::from_millis(300))?;
        let values = upload(&gpu, Element::F32, &[1.0, 2.0]);
        let result = comm.all_reduce(&gpu, Stream::COMMUNICATION, Reduction::Sum, values);
        let result = result.and_then(|()| {
            comm.all_to_all(&gpu, Stream::COMMUNICATION, &[values], &[upload(&gpu, Element::F32, &[0.0; 2])])
        });
        let result = result.and_then(|()| comm.poll());
        if let Err(error) = &result {
            let again = comm.all_reduce(&gpu, Stream::COMMUNICATION, Reduction::Sum, values);
            assert_eq!(again.as_ref(), Err(error), "a group that has failed says so ever after");
        }
        result?;
        comm.abort("the run is over");
        let after = comm.poll().expect_err("an end").to_string();
        Ok(format!("{:?}, then {after}", download(&gpu, values)))
    };
    answer(&run().map_or_else(|error| format!("failed: {error}"), |words| format!("done: {words}")));
}

#[test]
fn a_group_that_fails_says_why_and_ends() {
    let Some([whole, _]) = machine::build() else {
        return skip("a_group_that_fails_says_why_and_ends", "there is no compiler for C++ (c++)");
    };
    let cases: &[(&str, &str, &[&str])] = &[
        ("1", "", &["done: [1.0, 2.0]", "the run is over"]),
        ("2", "", &["joining a group of 2 GPUs as rank 0", "within 0.3 s", "a rank has not come"]),
        ("1", "MACHINE_NCCL=21703", &["joining GPUs", "2.17.3", "at least 2.18.0", "nvidia-nccl"]),
        ("1", "MACHINE_FAIL=ncclGetUniqueId:1:2", &["making an id", "NCCL_DEBUG"]),
        ("1", "MACHINE_FAIL=ncclCommInitRankConfig:1:5", &["joining a group of 1 GPUs", "the emulated network"]),
        ("1", "MACHINE_FAIL=ncclAllReduce:1:1", &["an all-reduce of 1 GPUs, rank 0"]),
        ("1", "MACHINE_FAIL=ncclSend:1:3", &["an exchange of 1 GPUs"]),
        ("1", "MACHINE_FAIL=ncclGroupEnd:1:3", &["an exchange of 1 GPUs"]),
        // The first question comes from joining; the second from the poll.
        ("1", "MACHINE_FAIL=ncclCommGetAsyncError:2:6", &["remote process exited", "another rank has ended"]),
    ];
    for (members, setting, expected) in cases {
        let mut settings = vec![("MEMBERS", *members)];
        settings.extend(setting.split_once('='));
        let answer = machine::run(whole, "collectives::alone", &settings);
        assert!(answer.ok, "{setting}\n{}", answer.words);
        for words in *expected {
            assert!(answer.words.contains(words), "{setting}: `{words}` is not in `{}`", answer.words);
        }
        assert_eq!(answer.words.starts_with("done"), setting.is_empty() && *members == "1", "{}", answer.words);
    }
}
