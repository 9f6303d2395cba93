use std::fmt::Display;
use std::str::FromStr;

use super::*;
use crate::testing::Random;

/// `Ok(canonical form)` or a part of the error.
fn check<T: FromStr<Err = QuantityError> + Display>(text: &str, expect: Result<&str, &str>) {
    match (text.parse::<T>(), expect) {
        (Ok(value), Ok(form)) => assert_eq!(value.to_string(), form, "{text}"),
        (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{text}: {error}"),
        (Ok(value), Err(part)) => panic!("{text} parsed as {value}, expected an error with {part:?}"),
        (Err(error), Ok(form)) => panic!("{text}: expected {form}, got {error}"),
    }
}

#[test]
fn durations() {
    for (text, form) in [
        ("20us", "20 us"),
        ("1.5 ms", "1.5 ms"),
        ("3ns", "3 ns"),
        ("2h", "2 h"),
        ("0 s", "0 ns"),
        ("90 s", "90 s"),
        ("120s", "2 min"),
        ("1e3 us", "1 ms"),
        ("2.5 \u{b5}s", "2.5 us"),
        ("0.0000015 s", "1.5 us"),
        (" 7 d ", "7 d"),
        ("18446744073709551615 ns", "18446744073.709551615 s"),
    ] {
        check::<SimDuration>(text, Ok(form));
    }
    for (text, part) in [
        ("", "empty"),
        ("20", "no unit"),
        ("us", "does not start with a number"),
        ("-3 ms", "negative"),
        ("NaN s", "finite"),
        ("inf", "finite"),
        ("3 GB", "an amount of data, not a duration"),
        ("1.5 ns", "one nanosecond"),
        ("0.0001 us", "one nanosecond"),
        ("18446744073709551616 ns", "too large"),
        ("1e300 d", "too large"),
        ("1e-300 d", "one nanosecond"),
        ("1e99999999999 s", "digits"),
        ("1.s", "decimal point"),
        (".5 s", "decimal point"),
        ("20 parsecs", "not a unit"),
        ("3 MS", "capitals matter"),
        ("1,000 ms", "digits and a decimal point"),
    ] {
        check::<SimDuration>(text, Err(part));
    }
}

#[test]
fn amounts_of_data() {
    for (text, bytes) in [
        ("80GiB", 80 << 30),
        ("80 GB", 80_000_000_000),
        ("512 MiB", 512 << 20),
        ("123B", 123),
        ("0B", 0),
        ("1.5 KiB", 1536),
        ("79.1 GiB", 84_932_978_278),
        ("15.999999999999999999 EiB", u64::MAX),
    ] {
        assert_eq!(text.parse(), Ok(Bytes::new(bytes)), "{text}");
    }
    for (text, form) in
        [("80 GiB", "80 GiB"), ("80GB", "80 GB"), ("1024 B", "1 KiB"), ("1000 B", "1 kB"), ("1537B", "1537 B")]
    {
        check::<Bytes>(text, Ok(form));
    }
    for (text, part) in [
        ("80", "no unit"),
        ("80 KB", "\"kB\" for 1000 or \"KiB\" for 1024"),
        ("80 gib", "capitals matter in units: write \"GiB\""),
        ("16 EiB", "too large"),
        ("0.5 B", "one byte"),
        ("400 Gb/s", "a data rate, not an amount of data"),
        ("3 ms", "a duration"),
    ] {
        check::<Bytes>(text, Err(part));
    }
}

#[test]
fn rates() {
    for (text, form) in [
        ("400Gbps", "50 GB/s"),
        ("400 Gb/s", "50 GB/s"),
        ("50GB/s", "50 GB/s"),
        ("1 GiB/s", "1.073741824 GB/s"),
        ("8 Gibit/s", "1.073741824 GB/s"),
        ("1.5e3 MB/s", "1.5 GB/s"),
        ("1 b/s", "0.125 B/s"),
    ] {
        check::<BytesPerSecond>(text, Ok(form));
    }
    for (text, part) in [
        ("400", "no unit"),
        ("0 GB/s", "zero"),
        ("-1 GB/s", "negative"),
        ("50 GB", "per second"),
        ("400 gb/s", "\"Gb/s\" (bits) or \"GB/s\""),
        ("1e308 EB/s", "out of range"),
        ("1e-399 B/s", "out of range"),
        ("312 TFLOPS", "a rate of operations, not a data rate"),
    ] {
        check::<BytesPerSecond>(text, Err(part));
    }
    for (text, form) in [("312 TFLOPS", "312 TFLOP/s"), ("312TFLOP/s", "312 TFLOP/s"), ("12.5 GFLOPS", "12.5 GFLOP/s")]
    {
        check::<FlopsPerSecond>(text, Ok(form));
    }
    assert_eq!("312 TFLOPS".parse::<FlopsPerSecond>().map(|r| r.get().to_bits()), Ok(312e12f64.to_bits()));
    check::<FlopsPerSecond>("312 TFLOP", Err("write FLOP/s"));
    check::<FlopsPerSecond>("312 T", Err("not a unit"));
    check::<Flops>("5 PFLOP", Ok("5 PFLOP"));
    check::<Flops>("3.15e23 FLOP", Ok("315000 EFLOP"));
    check::<Flops>("5 PFLOPS", Err("per second"));
}

#[test]
fn printed_quantities_parse_back_to_the_same_value() {
    let mut random = Random::new(1);
    for _ in 0..20_000 {
        let raw = random.next() >> random.below(64);
        let round = raw - raw % 10u64.pow(u32::try_from(random.below(12)).unwrap());
        for n in [raw, round, raw << random.below(30)] {
            let (duration, bytes) = (SimDuration::from_nanoseconds(n), Bytes::new(n));
            assert_eq!(duration.to_string().parse(), Ok(duration));
            assert_eq!(bytes.to_string().parse(), Ok(bytes));
            let flops = Flops::new(u128::from(n) << random.below(64));
            assert_eq!(flops.to_string().parse(), Ok(flops));
        }
        if let Some(rate) = BytesPerSecond::new(f64::from_bits(random.next())) {
            let back: BytesPerSecond = rate.to_string().parse().unwrap();
            assert_eq!(back.get().to_bits(), rate.get().to_bits(), "{rate}");
        }
        let rate = FlopsPerSecond::new(raw as f64 + 1.0).unwrap();
        assert_eq!(rate.to_string().parse::<FlopsPerSecond>().unwrap().get().to_bits(), rate.get().to_bits());
    }
}

#[test]
fn no_text_panics() {
    const PIECES: [&str; 30] = [
        "",
        " ",
        "-",
        "+",
        ".",
        "e",
        "E",
        "0",
        "1",
        "9",
        "99999999999999999999",
        "e400",
        "e-400",
        "e99999999999",
        "Gi",
        "K",
        "k",
        "B",
        "b/s",
        "bps",
        "FLOP",
        "S",
        "/s",
        "ns",
        "\u{b5}s",
        "min",
        "NaN",
        "é",
        "\u{0}",
        ",",
    ];
    let mut random = Random::new(2);
    for _ in 0..100_000 {
        let text: String = (0..random.below(7)).map(|_| PIECES[random.index(PIECES.len())]).collect();
        let _ = text.parse::<SimDuration>();
        let _ = text.parse::<Bytes>();
        let _ = text.parse::<Flops>();
        let _ = text.parse::<BytesPerSecond>();
        let _ = text.parse::<FlopsPerSecond>();
    }
}

#[test]
fn serde_uses_the_text_form() {
    #[derive(serde::Serialize, serde::Deserialize, PartialEq, Debug)]
    struct Link {
        bandwidth: BytesPerSecond,
        latency: SimDuration,
    }
    let link: Link = toml::from_str("bandwidth = \"400Gbps\"\nlatency = \"5 us\"").unwrap();
    assert_eq!(toml::to_string(&link).unwrap(), "bandwidth = \"50 GB/s\"\nlatency = \"5 us\"\n");
    let error = toml::from_str::<Link>("bandwidth = 400\nlatency = \"5 us\"").unwrap_err();
    assert!(error.to_string().contains("a data rate with its unit"), "{error}");
}
