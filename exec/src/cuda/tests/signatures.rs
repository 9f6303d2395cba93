//! The arguments that the host gives are those that the sources take, kernel by kernel.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use crate::cuda::launch::{Argument, Launch, launches};
use crate::cuda::source::Source;
use crate::device::tests::suite;
use crate::device::*;
use crate::kernels::testing::Cases;

/// The CPU, which notes what a GPU would have launched.
#[derive(Debug, Default)]
struct Recording {
    cpu: CpuDevice,
    launched: Mutex<Vec<Launch>>,
}

impl Device for Recording {
    fn name(&self) -> String {
        self.cpu.name()
    }
    fn unsupported(&self, operation: &Operation) -> Option<String> {
        self.cpu.unsupported(operation)
    }
    fn allocate(&self, stream: Stream, element: Element, length: usize) -> Result<Slice, DeviceError> {
        self.cpu.allocate(stream, element, length)
    }
    fn release(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError> {
        self.cpu.release(stream, slice)
    }
    fn write(&self, stream: Stream, bytes: &[u8], to: Slice) -> Result<(), DeviceError> {
        self.cpu.write(stream, bytes, to)
    }
    fn read(&self, stream: Stream, from: Slice) -> Result<Vec<u8>, DeviceError> {
        self.cpu.read(stream, from)
    }
    fn copy(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        self.cpu.copy(stream, from, to)
    }
    fn zero(&self, stream: Stream, slice: Slice) -> Result<(), DeviceError> {
        self.cpu.zero(stream, slice)
    }
    fn pin(&self, bytes: usize) -> Result<HostBuffer, DeviceError> {
        self.cpu.pin(bytes)
    }
    fn unpin(&self, buffer: HostBuffer) -> Result<(), DeviceError> {
        self.cpu.unpin(buffer)
    }
    fn offload(&self, stream: Stream, from: Slice, to: HostBuffer, start: usize) -> Result<(), DeviceError> {
        self.cpu.offload(stream, from, to, start)
    }
    fn fetch(&self, stream: Stream, from: HostBuffer, start: usize, to: Slice) -> Result<(), DeviceError> {
        self.cpu.fetch(stream, from, start, to)
    }
    fn run(&self, stream: Stream, operation: &Operation) -> Result<(), DeviceError> {
        self.launched.lock().expect("no panic").extend(launches(operation).list);
        self.cpu.run(stream, operation)
    }
    fn product(&self, stream: Stream, product: &Product) -> Result<(), DeviceError> {
        self.cpu.product(stream, product)
    }
    fn record(&self, stream: Stream) -> Result<Event, DeviceError> {
        self.cpu.record(stream)
    }
    fn passed(&self, event: Event) -> Result<bool, DeviceError> {
        self.cpu.passed(event)
    }
    fn between(&self, from: Event, to: Event) -> Result<i64, DeviceError> {
        self.cpu.between(from, to)
    }
    fn wait(&self, stream: Stream, event: Event) -> Result<(), DeviceError> {
        self.cpu.wait(stream, event)
    }
    fn forget(&self, event: Event) -> Result<(), DeviceError> {
        self.cpu.forget(event)
    }
    fn synchronize(&self, stream: Stream) -> Result<(), DeviceError> {
        self.cpu.synchronize(stream)
    }
    fn memory(&self) -> DeviceMemory {
        self.cpu.memory()
    }
    fn into_any(self: Arc<Self>) -> Arc<dyn std::any::Any + Send + Sync> {
        self
    }
}

/// Kernels of a source, each with its parameters' types.
fn kernels(source: Source) -> BTreeMap<String, Vec<String>> {
    let text = source.text();
    let shape = "index_t queries, index_t first_query, index_t keys, index_t first_key, index_t query_heads, index_t \
                 key_heads, index_t dim, index_t window, float scale, const unsigned* starts";
    let flat = text.replace("\\\n", " ").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(source != Source::Attention || flat.contains(shape), "the parameters of a shape have changed");
    let kernels = text.split("\nKERNEL ").skip(1).map(|rest| {
        let head = rest.split_once(") {").expect("a kernel's head").0;
        let head = head.strip_prefix("__launch_bounds__(WARPS * 32) ").unwrap_or(head);
        let (name, parameters) = head.split_once('(').expect("parameters");
        let parameters = parameters.replace("SHAPE_PARAMETERS", shape);
        let kind = |parameter: &str| {
            let words = parameter.trim().trim_start_matches("const ");
            match words.split_once('*') {
                Some((kind, _)) => format!("{kind}*"),
                None => words.split(' ').next().expect("a type").to_owned(),
            }
        };
        (name.to_owned(), parameters.split(',').map(kind).collect())
    });
    kernels.collect()
}

/// The type that an argument has in a source.
fn fits(argument: &Argument, kind: &str, element: Element) -> bool {
    match argument {
        Argument::Slice(slice) => match kind {
            "element*" => slice.element == element,
            "float*" => slice.element == Element::F32,
            "double*" => slice.element == Element::F64,
            "unsigned*" => slice.element == Element::U32,
            "bf16*" => slice.element == Element::Bf16,
            _ => false,
        },
        Argument::Scratch(_) => matches!(kind, "float*" | "double*"),
        Argument::Null => kind.ends_with('*'),
        Argument::Long(_) => kind == "index_t",
        Argument::Int(_) => kind == "int",
        Argument::Unsigned(_) => kind == "unsigned",
        Argument::Single(_) => kind == "float",
        Argument::Double(_) => kind == "double",
    }
}

#[test]
fn every_kernel_is_launched_with_the_arguments_that_it_takes() {
    let device = Recording::default();
    for (_, group) in suite::GROUPS {
        for element in [Element::F32, Element::Bf16] {
            Cases::run(3, |cases| drop(suite::run(&device, element, cases, *group)));
        }
    }
    let launched = device.launched.into_inner().expect("no panic");
    for launch in &launched {
        let all = kernels(launch.module.source);
        let kinds =
            all.get(launch.kernel).unwrap_or_else(|| panic!("no kernel {} in {:?}", launch.kernel, launch.module));
        assert_eq!(kinds.len(), launch.arguments.len(), "{launch:?} and {kinds:?}");
        for (argument, kind) in launch.arguments.iter().zip(kinds) {
            assert!(fits(argument, kind, launch.module.element), "{argument:?} is no {kind} in {launch:?}");
        }
    }
    let used: BTreeSet<_> = launched.iter().map(|launch| (launch.module.source, launch.kernel.to_owned())).collect();
    let there: BTreeSet<_> =
        Source::ALL.iter().flat_map(|&s| kernels(s).into_keys().map(move |name| (s, name))).collect();
    assert_eq!(used, there, "every kernel is used, and every one that is used is there");
    for source in Source::ALL {
        let text = source.text();
        let missing: Vec<_> =
            kernels(source).into_keys().filter(|name| !text.contains(&format!("\nEXPORT({name})"))).collect();
        assert!(missing.is_empty(), "{source:?}: EXPORT is missing for {missing:?}");
    }
}
