//! Tables as people have them, and tables that went wrong.

use super::*;

/// As nccl-tests 2.13 prints it, with the rank that mpirun puts before each line.
const WHOLE: &str = "[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 8 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20
[1,0]<stdout>:# Collective test starting: all_gather_perf
[1,0]<stdout>:#  Rank  0 Group  0 Pid  18665 on   host-1 device  0 [0x0f] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#  Rank  1 Group  0 Pid  18666 on   host-1 device  1 [0x10] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#  Rank  2 Group  0 Pid  18665 on   host-2 device  0 [0x0f] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#  Rank  3 Group  0 Pid  18666 on   host-2 device  1 [0x10] NVIDIA H100 80GB HBM3
[1,0]<stdout>:#
[1,0]<stdout>:#                                                              out-of-place                       in-place
[1,0]<stdout>:#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
[1,0]<stdout>:#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
[1,0]<stdout>:           0             0     float    none      -1     0.10    0.00    0.00      0     0.10    0.00    0.00      0
[1,0]<stdout>:     1048576         65536     float    none      -1    34.20   30.66   23.00      0    33.10   31.68   23.76    N/A
[1,0]<stdout>:     2097152        131072     float    none      -1    45.10   46.50   34.87      0    44.90   46.71   35.03    N/A
host-1:18665:18700 [0] NCCL INFO comm 0x55 destroyed
[1,0]<stdout>:# Out of bounds values : 0 OK
[1,0]<stdout>:# Avg bus bandwidth    : 28.9
";

fn check(text: &str, said: Said, expect: Result<(CollectiveKind, u32, Option<u32>, usize), &[&str]>) {
    match (read(text, "n.txt", &said), expect) {
        (Ok(curve), Ok(expect)) => {
            assert_eq!((curve.kind, curve.ranks, curve.nodes, curve.points.len()), expect);
        }
        (Err(problems), Err(needles)) => {
            let found: Vec<String> = problems.iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), needles.len(), "{found:#?}");
            for (found, needle) in found.iter().zip(needles) {
                assert!(found.contains(needle), "no {needle:?} in {found:?}");
            }
            assert!(problems.iter().all(|p| p.span.as_ref().is_some_and(|s| s.range.end <= text.len())));
        }
        (found, expect) => panic!("{found:?} where {expect:?} was expected\n{text}"),
    }
}

fn said(kind: Option<CollectiveKind>, ranks: Option<u32>) -> Said {
    Said { kind, ranks }
}

#[test]
fn a_whole_output_says_everything() {
    check(WHOLE, Said::default(), Ok((CollectiveKind::AllGather, 4, Some(2), 2)));
    check(WHOLE, said(Some(CollectiveKind::AllGather), Some(4)), Ok((CollectiveKind::AllGather, 4, Some(2), 2)));
    // As srun -l marks lines.
    let labelled = WHOLE.replace("[1,0]<stdout>:", "0: ");
    check(&labelled, Said::default(), Ok((CollectiveKind::AllGather, 4, Some(2), 2)));
    // As a file from another system.
    let foreign = format!("\u{feff}{}", WHOLE.replace('\n', "\r\n"));
    check(&foreign, Said::default(), Ok((CollectiveKind::AllGather, 4, Some(2), 2)));
}

#[test]
fn what_contradicts_itself_is_refused() {
    let with = |from: &str, to: &str| {
        assert!(WHOLE.contains(from), "{from}");
        WHOLE.replacen(from, to, 1)
    };
    check(
        WHOLE,
        said(Some(CollectiveKind::AllReduce), None),
        Err(&["all_gather_perf is all-gather, and all-reduce was said before"]),
    );
    check(WHOLE, said(None, Some(8)), Err(&["lists 4 ranks, and 8 were said"]));
    check(
        &with("all_gather_perf", "sendrecv_perf"),
        Said::default(),
        Err(&["line 2: sendrecv_perf measures what no plan uses"]),
    );
    check(&with("45.10", "54.10"), Said::default(), Err(&["line 13: algbw is 46.5, and size over time is 38.76"]));
    check(&with("  23.00 ", "  33.00 "), Said::default(), Err(&["line 12: busbw is 33, and 23.00 would follow"]));
    check(
        &with("  34.87 ", "  40.69 "),
        Said::default(),
        Err(&["which no all-gather of 4 ranks has (0.8751 is that of 8)"]),
    );
    check(&with(" 23.00      0", " 23.00     12"), Said::default(), Err(&["12 wrong values"]));
    check(&with("    2097152 ", "     524288 "), Said::default(), Err(&["524288 bytes do not follow 1048576"]));
    check(&with("34.20", "  N/A"), Said::default(), Err(&["`N/A` is no time"]));
    check(&with("    33.10   31.68   23.76    N/A", ""), Said::default(), Err(&["line 12: has 9 of 13 cells"]));
    check(&with("(us)", "(ms)"), Said::default(), Err(&["unknown unit (ms)"]));
    let doubled = format!("{WHOLE}{WHOLE}");
    check(&doubled, Said::default(), Err(&["a second table begins (give each collective a file of its own)"]));
    check("", Said::default(), Err(&["has 0 rows of a table"]));
    check("{}", Said::default(), Err(&["has 0 rows of a table"]));
}

#[test]
fn what_is_not_said_is_asked_for() {
    let bare = "size time algbw busbw\n(B) (us) (GB/s) (GB/s)\n1048576 104.9 10.00 17.50\n2097152 104.9 20.00 35.00\n";
    check(bare, Said::default(), Err(&["does not say which collective it is of (say it beside the file: kind"]));
    check(bare, said(Some(CollectiveKind::AllReduce), None), Ok((CollectiveKind::AllReduce, 8, None, 2)));
    check(bare, said(Some(CollectiveKind::AllReduce), Some(8)), Ok((CollectiveKind::AllReduce, 8, None, 2)));
    check(
        bare,
        said(Some(CollectiveKind::AllReduce), Some(16)),
        Err(&["no all-reduce of 16 ranks has (1.7500 is that of 8)"]),
    );
    check(bare, said(Some(CollectiveKind::AllGather), None), Err(&["no all-gather of any number of ranks has"]));
    // Two decimals of small rates leave several numbers of ranks.
    let slow = bare.replace("104.9 10.00 17.50", "1049 1.00 1.98").replace("104.9 20.00 35.00", "1049 2.00 3.97");
    check(&slow, said(Some(CollectiveKind::AllReduce), None), Err(&["does not say how many ranks took part"]));
    check(&slow, said(Some(CollectiveKind::AllReduce), Some(128)), Ok((CollectiveKind::AllReduce, 128, None, 2)));
    let unit = bare.replace("(B) (us) (GB/s) (GB/s)\n", "");
    check(&unit, said(Some(CollectiveKind::AllReduce), None), Err(&["does not say its units"]));
    let still = bare.replace("104.9 10.00 17.50", "4 262.14 0.00").replace("104.9 20.00 35.00", "4 524.29 0.00");
    check(&still, said(Some(CollectiveKind::AllReduce), None), Err(&["a bus bandwidth of 0 throughout"]));
}

/// The files that people posted, with what nccl-tests' own formula says of them.
#[test]
fn files_of_users_are_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles/nccl");
    let Ok(h200) = std::fs::read_to_string(folder.join("all_reduce_bench_h200x8.md")) else {
        crate::testing::skipped(&folder);
        return;
    };
    let a100 = std::fs::read_to_string(folder.join("all_reduce_perf_a100x8_massaged.txt")).expect("beside it");
    let curve = read(&a100, "a100", &Said::default()).unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!((curve.kind, curve.ranks, curve.points.len()), (CollectiveKind::AllReduce, 8, 20));
    assert_eq!(curve.points[19].map(f64::to_bits), [17_179_869_184.0, 127_997.0].map(f64::to_bits));
    let curve = read(&h200, "h200", &Said::default()).unwrap_or_else(|p| panic!("{p:#?}"));
    assert_eq!((curve.kind, curve.ranks, curve.points.len()), (CollectiveKind::AllReduce, 8, 20));
    // 2^34 bytes at 275.58e9 a second.
    assert!((curve.points[19][1] / 62_340.8 - 1.0).abs() < 1e-4, "{:?}", curve.points[19]);
}

#[test]
fn mutated_outputs_never_panic() {
    let markdown = "all_reduce_bench\n| payload | busbw | algbw |\n| ---: | ---: | ---: |\n| 1MiB | 39.93GBps | 22.82GBps |\n| 2MiB | 64.53GBps | 36.87GBps |\n";
    let (mut good, mut bad) = (0, 0);
    let tried =
        crate::text::testing::mutate(7, 20_000, &[WHOLE, markdown], |text| match read(text, "m", &Said::default()) {
            Ok(curve) => {
                assert!(curve.ranks >= 2 && curve.points.len() >= 2);
                assert!(curve.points.is_sorted_by(|a, b| a[0] < b[0]) && curve.points.iter().all(|p| p[1] > 0.0));
                good += 1;
            }
            Err(problems) => {
                assert!(!problems.is_empty());
                bad += 1;
            }
        });
    assert!(tried > 10_000 && good > 100 && bad > 1000, "{tried} {good} {bad}");
}

#[test]
fn seats_of_ranks_are_read() {
    let found = seats(WHOLE, "n.txt").expect("four ranks");
    let seat = |host: &str, device| Seat { host: host.to_owned(), device };
    assert_eq!(found, [seat("host-1", 0), seat("host-1", 1), seat("host-2", 0), seat("host-2", 1)]);
    let refused = |from: &str, to: &str, words: &str| {
        assert!(WHOLE.contains(from), "{from:?}");
        let problems = seats(&WHOLE.replacen(from, to, 1), "n.txt").expect_err("not all ranks");
        assert!(problems.iter().any(|problem| problem.to_string().contains(words)), "{problems:?} lacks {words}");
    };
    refused("Rank  1", "Rank  0", "line 4: lists rank 0 again");
    refused("Rank  1", "Rank  x", "line 5: is truncated: rank 1 is not listed");
    refused("host-1 device  1", "host-1 device  0", "line 4: gives rank 1 device 0 of host-1, which rank 0 has");
    assert!(seats("", "n.txt").expect_err("nothing")[0].to_string().contains("lists none"));
}
