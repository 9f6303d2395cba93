use super::Grid;
use crate::testing::Random;

/// Faults of a grid, each as its first line.
fn check(text: &str, chunks: u32, microbatches: u32, expect: &[&str]) {
    let grid = Grid::parse(text).unwrap();
    let problems = grid.problems(chunks, microbatches);
    let lines: Vec<String> =
        problems.iter().map(|p| format!("{}: {}", p.subject, p.message.lines().next().unwrap())).collect();
    assert_eq!(lines.len(), expect.len(), "{text}: {lines:#?}");
    for (line, part) in lines.iter().zip(expect) {
        assert!(line.contains(part), "{text}: {line}, expected {part}");
    }
}

#[test]
fn sound_grids_pass() {
    check("0F0,0B0", 1, 1, &[]);
    check("0F0,0F1,,0B0,,0B1\n,1F0,1B0,1F1,1B1", 2, 2, &[]);
    check("0F0,0F1,0I0,0W0,0I1,0W1\n1F0,1I0,1F1,1I1,1W0,1W1", 2, 2, &[]);
    // Interleaved and V-shaped placements.
    check("0F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0", 4, 1, &[]);
    check("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0", 4, 1, &[]);
}

#[test]
fn faults_are_named() {
    check("0F0", 1, 1, &["line 1, cell 2: 0B0 is missing"]);
    check("0B0", 1, 1, &["0F0 is missing"]);
    check("0F0,0I0", 1, 1, &["0W0 is missing"]);
    check("0F0,0W0", 1, 1, &["0I0 is missing"]);
    check("0F0,0B0,0W0", 1, 1, &["0W0 occurs beside 0B0"]);
    check("0F0,0F0,0B0", 1, 1, &["cell 2: 0F0 occurs twice"]);
    check("0B0,0F0", 1, 1, &["cell 1: 0B0 comes before 0F0"]);
    check("0F0,0W0,0I0", 1, 1, &["0W0 comes before 0I0"]);
    check("0F0,0B0,5F0", 1, 1, &["cell 3: chunk 5 does not exist"]);
    check("0F0,0B0,0F7", 1, 1, &["microbatch 7 does not exist"]);
    check("0F0,0B0", 2, 1, &["chunk 1 has no pass"]);
    check("0F0,0B0", 1, 2, &["microbatch 1 does not pass chunk 0"]);
    check("0F0\n1F0,1B0,0B0", 2, 1, &["line 2, cell 3: chunk 0 is on position 0 and on position 1"]);
    check("0F0,0B0", u32::MAX, u32::MAX, &[["chunk"; 8].as_slice(), &["more faults"]].concat());
}

#[test]
fn circles_are_named() {
    check(
        "0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0",
        2,
        2,
        &["0B0 on position 0 waits for 1B0; 1F1 on position 1 waits for 0F1"],
    );
    // Chunk 0 and its successor on one line in the wrong order: a circle of one.
    check("1F0,0F0,1B0,0B0", 2, 1, &["1F0 on position 0 waits for 0F0"]);
}

#[test]
fn the_picture_marks_the_guilty_cell() {
    let grid = Grid::parse("0F0,0F1,0B0,0B1\n1F0,1B0,1F1").unwrap();
    assert_eq!(
        grid.picture(Some((1, 1))),
        "position 0 | 0F0  0F1  0B0  0B1\n\
         position 1 | 1F0 >1B0< 1F1"
    );
    assert!(grid.picture(Some((1, 3))).ends_with("1F1 >?<"));
    let wide = Grid::parse(&format!("{}0B99", "0F1234,".repeat(200))).unwrap();
    let picture = wide.picture(Some((0, 100)));
    assert!(picture.len() < 200 && picture.contains(">0F1234<") && picture.matches('…').count() == 2, "{picture}");
}

#[test]
fn bad_cells_are_all_named() {
    let problems = Grid::parse("0F0,xyz\n,0SEND_F0,0f1,0F99999999999,0").unwrap_err();
    let shown: Vec<String> = problems.iter().map(ToString::to_string).collect();
    let parts = ["line 1, cell 2: \"xyz\"", "line 2, cell 2", "capital letter", "over 4294967295", "cell 5"];
    assert_eq!(shown.len(), parts.len(), "{shown:#?}");
    assert!(shown.iter().zip(parts).all(|(line, part)| line.contains(part)), "{shown:#?}");
    assert!(shown[1].contains("passes only"));
    assert!(Grid::parse("\n\n").is_err() && Grid::parse("").is_err());
}

#[test]
fn random_text_neither_panics_nor_changes_when_printed() {
    const PIECES: [&str; 13] = ["0", "1", "2", "3", "F", "B", "I", "W", ",", ",", "\n", "é", "99999999999"];
    let mut random = Random::new(3);
    for _ in 0..30_000 {
        let text: String = (0..random.below(40)).map(|_| PIECES[random.index(13)]).collect();
        if let Ok(grid) = Grid::parse(&text) {
            let _ = grid.problems(3, 3);
            let _ = grid.picture(Some((0, 0)));
            assert_eq!(Grid::parse(&grid.to_string()).unwrap(), grid, "{text}");
        }
    }
    // Cells that do exist, in any order: the check itself must not panic.
    for _ in 0..20_000 {
        let cells: Vec<String> = (0..random.below(16))
            .map(|_| format!("{}{}{}", random.below(3), ["F", "B", "I", "W"][random.index(4)], random.below(2)))
            .collect();
        let cut = random.index(cells.len() + 1);
        if let Ok(grid) = Grid::parse(&format!("{}\n{}", cells[..cut].join(","), cells[cut..].join(","))) {
            let _ = grid.problems(2, 2);
        }
    }
}
