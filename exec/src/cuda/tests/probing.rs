//! What `doctor` says about machines that lack something.

use crate::cuda::probe::{Names, State, load, probe_for};
use crate::cuda::{Library, nccl};

fn none() -> Names {
    let nowhere = |name: &str| vec![format!("libtrainyard-no-such-{name}.so")];
    Names {
        driver: nowhere("cuda"),
        compiler: nowhere("nvrtc"),
        products: nowhere("cublas"),
        collectives: nowhere("nccl"),
    }
}

#[test]
fn a_machine_without_cuda_is_told_what_to_install() {
    let probe = probe_for(&none());
    for library in [&probe.driver, &probe.compiler, &probe.products, &probe.collectives] {
        assert_eq!(library.state, State::Missing, "{}", library.name);
        assert!(library.to_string().contains("install"), "{library}");
    }
    assert!(probe.gpus.is_empty());
    let error = probe.usable().expect_err("no GPU").to_string();
    for words in ["driver", "NVRTC", "cuBLAS", "525"] {
        assert!(error.contains(words), "{words} in {error}");
    }
    assert!(!error.contains("NCCL"), "one GPU needs no NCCL: {error}");
}

#[test]
fn a_file_that_is_no_library_is_told_apart_from_none() {
    let path = std::env::temp_dir().join(format!("trainyard-no-library-{}.so", std::process::id()));
    std::fs::write(&path, "no library").expect("a file");
    let state = load(&[path.to_string_lossy().into_owned()], &[]).expect_err("no library");
    std::fs::remove_file(&path).expect("the file goes");
    assert!(matches!(&state, State::Unusable(cause) if cause.contains("trainyard-no-library")), "{state:?}");
}

/// Where NCCL is installed, it loads and says its version, with or without a GPU.
#[test]
fn nccl_says_its_version() {
    match nccl::Functions::load(&nccl::FILE_NAMES.map(str::to_owned)) {
        Ok(functions) => assert!(functions.version() >= nccl::Version(21_800), "{}", functions.version()),
        Err(state) => {
            let library = Library { name: "NCCL", state, hint: "" };
            super::skip("nccl_says_its_version", &library.to_string());
        }
    }
    assert_eq!(nccl::Version(22_809).to_string(), "2.28.9");
}
