//! Who started this process: what launchers say in its environment, read once into a [`Launch`].
//!
//! | launcher | variables |
//! |---|---|
//! | torchrun | `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `MASTER_ADDR`, `MASTER_PORT`, `TORCHELASTIC_RUN_ID` |
//! | Slurm (`srun`) | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS`, `SLURM_LOCALID`, `SLURM_JOB_ID`, `SLURM_STEP_ID`, `SLURM_STEP_NODELIST`, `SLURMD_NODENAME` |
//! | Open MPI (`mpirun`) | `OMPI_COMM_WORLD_RANK`, `_SIZE`, `_LOCAL_RANK`, `_LOCAL_SIZE`, `PMIX_NAMESPACE` |
//! | MPICH and kin | `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID` |
//!
//! The first of them that is there counts. `TRAINYARD_COORDINATOR` says where rank 0 is found (`host:port`) where the
//! launcher does not, or the other ranks cannot reach it there. A launch of one process is none: its ranks are threads. A
//! batch script of Slurm is no step, so what runs in it without `srun` is not launched either.

use exec::processes::Place;
use ir::Problem;

use crate::Error;

/// What starts the processes of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Launcher {
    /// PyTorch's.
    Torchrun,
    /// `srun`.
    Slurm,
    /// `mpirun` of Open MPI.
    OpenMpi,
    /// `mpirun` of MPICH, Intel MPI and others that speak PMI.
    Mpich,
}

impl Launcher {
    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Torchrun => "torchrun",
            Self::Slurm => "Slurm",
            Self::OpenMpi => "Open MPI",
            Self::Mpich => "MPICH",
        }
    }
}

/// This process as its launcher sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Launch {
    /// Who started it.
    pub launcher: Launcher,
    /// Its rank.
    pub rank: u32,
    /// How many processes there are; more than one.
    pub world: u32,
    /// Its rank on its node: the device that it claims.
    pub local_rank: u32,
    /// Its node, if the launcher names it.
    pub node: Option<String>,
    /// What identifies the run.
    pub run: String,
    /// `host:port` of rank 0.
    pub coordinator: String,
}

/// The first port for runs whose launcher names none; the run's identity chooses one of the [`PORTS`] from there.
const FIRST_PORT: u64 = 20_000;
/// Ports that runs are spread over: below those that systems give to connections.
const PORTS: u64 = 10_000;

impl Launch {
    /// Reads this process's environment; `None` if no launcher started it, or it is alone.
    ///
    /// # Errors
    /// [`Error::Input`] with every variable that makes no sense.
    pub fn read() -> Result<Option<Self>, Error> {
        Self::parse(&|name| std::env::var(name).ok()).map_err(Error::input)
    }

    /// Reads variables.
    fn parse(get: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>, Vec<Problem>> {
        let mut variables = Variables { get, problems: Vec::new() };
        let launch = variables.launch();
        if variables.problems.is_empty() {
            Ok(launch.filter(|launch| launch.world > 1))
        } else {
            Err(variables.problems)
        }
    }

    /// This process among the others.
    pub(crate) fn place(&self) -> Place {
        let line = |path: &str| std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
        let host = line("/proc/sys/kernel/hostname").unwrap_or_else(|| "this host".to_owned());
        Place {
            rank: self.rank,
            world: self.world,
            run: self.run.clone(),
            node: self.node.clone().unwrap_or_else(|| host.clone()),
            device: self.local_rank,
            host: line("/proc/sys/kernel/random/boot_id").unwrap_or(host),
            coordinator: self.coordinator.clone(),
        }
    }
}

/// What is read, and what is wrong with it.
struct Variables<'a> {
    get: &'a dyn Fn(&str) -> Option<String>,
    problems: Vec<Problem>,
}

impl Variables<'_> {
    fn launch(&mut self) -> Option<Launch> {
        if self.has(&["RANK", "WORLD_SIZE"]) {
            self.torchrun()
        } else if self.has(&["SLURM_PROCID", "SLURM_STEP_NUM_TASKS"]) {
            self.slurm()
        } else if self.has(&["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"]) {
            let names = ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"];
            let one_host = self.text("OMPI_COMM_WORLD_LOCAL_SIZE") == self.text("OMPI_COMM_WORLD_SIZE");
            let run = self.text("PMIX_NAMESPACE").unwrap_or_else(|| "mpirun".to_owned());
            self.message_passing(Launcher::OpenMpi, names, run, one_host)
        } else if self.has(&["PMI_RANK", "PMI_SIZE"]) {
            let run = self.text("PMI_ID").map_or_else(|| "mpirun".to_owned(), |_| "mpiexec".to_owned());
            self.message_passing(Launcher::Mpich, ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"], run, false)
        } else {
            None
        }
    }

    fn torchrun(&mut self) -> Option<Launch> {
        let [rank, world, local_rank] = self.numbers(["RANK", "WORLD_SIZE", "LOCAL_RANK"])?;
        let id = self.text("TORCHELASTIC_RUN_ID").unwrap_or_else(|| "none".to_owned());
        let restart = self.text("TORCHELASTIC_RESTART_COUNT").unwrap_or_else(|| "0".to_owned());
        let run = format!("torchrun {id} {restart}");
        let address = self.text("MASTER_ADDR").zip(self.text("MASTER_PORT"));
        // torchrun's own store listens at the port that it names.
        let next = |(host, port): (String, String)| {
            port.parse::<u16>().ok().and_then(|port| port.checked_add(1)).map(|port| format!("{host}:{port}"))
        };
        let coordinator = self.coordinator(world, || address.and_then(next), "MASTER_ADDR and MASTER_PORT")?;
        Some(Launch { launcher: Launcher::Torchrun, rank, world, local_rank, node: None, run, coordinator })
    }

    fn slurm(&mut self) -> Option<Launch> {
        let [rank, world, local_rank] = self.numbers(["SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID"])?;
        let id = |name: &str, get: &Self| get.text(name).unwrap_or_else(|| "0".to_owned());
        let run = format!("slurm {}.{}", id("SLURM_JOB_ID", self), id("SLURM_STEP_ID", self));
        let first = self.text("SLURM_STEP_NODELIST").and_then(|list| first_host(&list));
        let port = port_of(&run);
        let found = || first.map(|host| format!("{host}:{port}"));
        let coordinator = self.coordinator(world, found, "SLURM_STEP_NODELIST")?;
        let node = self.text("SLURMD_NODENAME");
        Some(Launch { launcher: Launcher::Slurm, rank, world, local_rank, node, run, coordinator })
    }

    fn message_passing(&mut self, launcher: Launcher, names: [&str; 3], run: String, one_host: bool) -> Option<Launch> {
        let [rank, world, local_rank] = self.numbers(names)?;
        let port = port_of(&run);
        let found = || one_host.then(|| format!("127.0.0.1:{port}"));
        let coordinator = self.coordinator(world, found, "no variable of its own")?;
        Some(Launch { launcher, rank, world, local_rank, node: None, run, coordinator })
    }

    /// Where rank 0 is: as the person says, else as the launcher does.
    fn coordinator(&mut self, world: u32, found: impl FnOnce() -> Option<String>, from: &str) -> Option<String> {
        const OWN: &str = "TRAINYARD_COORDINATOR";
        match self.text(OWN) {
            Some(own) => {
                let port = own.rsplit_once(':').and_then(|(host, port)| Some((host, port.parse::<u16>().ok()?)));
                if port.is_none_or(|(host, port)| host.is_empty() || port == 0) {
                    self.problem(OWN, format!("`{own}` is not host:port"), "write it as node1:29400");
                    return None;
                }
                Some(own)
            }
            None => {
                let found = found();
                if found.is_none() && world > 1 {
                    let what = format!("is not set, and the launcher says by {from} not where rank 0 is");
                    self.problem(OWN, what, "set it to host:port of rank 0 on all nodes");
                    return None;
                }
                Some(found.unwrap_or_default())
            }
        }
    }

    /// Rank, world and rank on the node; the last may be missing.
    fn numbers(&mut self, names: [&str; 3]) -> Option<[u32; 3]> {
        let read = names.map(|name| {
            let text = self.text(name).unwrap_or_else(|| "0".to_owned());
            let number = text.trim().parse::<u32>().ok();
            if number.is_none() {
                self.problem(name, format!("`{text}` is not a rank or a count of ranks"), "the launcher sets it");
            }
            number
        });
        let [Some(rank), Some(world), Some(local)] = read else { return None };
        if rank >= world {
            let what = format!("rank {rank} is not one of the {world} that {} counts", names[1]);
            self.problem(names[0], what, "start all ranks by one launcher");
            return None;
        }
        Some([rank, world, local])
    }

    fn has(&self, names: &[&str]) -> bool {
        names.iter().all(|name| self.text(name).is_some())
    }

    fn text(&self, name: &str) -> Option<String> {
        (self.get)(name).filter(|text| !text.trim().is_empty())
    }

    fn problem(&mut self, name: &str, what: String, hint: &str) {
        self.problems.push(Problem::new(name, what).hint(hint));
    }
}

/// A port that depends on the run alone, the same on all nodes.
fn port_of(run: &str) -> u64 {
    let mut digest = ir::program::Digest::new();
    digest.text(run);
    FIRST_PORT + digest.finish() % PORTS
}

/// The first host of a list as Slurm writes it: `n1`, `n[3-5,8]`, `a[01-04]-ib,b2`.
fn first_host(list: &str) -> Option<String> {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (head, rest) = list.split_at(end);
    let Some(inside) = rest.strip_prefix('[') else { return (!head.is_empty()).then(|| head.to_owned()) };
    let (ranges, tail) = inside.split_once(']')?;
    let first = ranges.split([',', '-']).next().filter(|first| !first.is_empty())?;
    // A name may have several ranges, and other names may follow.
    let tail = if tail.is_empty() || tail.starts_with(',') { String::new() } else { first_host(tail)? };
    Some(format!("{head}{first}{tail}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(variables: &[(&str, &str)]) -> Result<Option<Launch>, Vec<Problem>> {
        let get = |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, text)| (*text).to_owned());
        Launch::parse(&get)
    }

    /// Launcher, rank, world, rank on the node, and coordinator.
    fn check(variables: &[(&str, &str)], expect: Option<(Launcher, u32, u32, u32, &str)>) {
        let launch = parse(variables).unwrap_or_else(|problems| panic!("{variables:?}: {problems:?}"));
        let found = launch.as_ref();
        let found = found.map(|l| (l.launcher, l.rank, l.world, l.local_rank, l.coordinator.as_str()));
        assert_eq!(found, expect, "{variables:?}");
    }

    const TORCHRUN: [(&str, &str); 6] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node7"),
        ("MASTER_PORT", "29500"),
        ("TORCHELASTIC_RUN_ID", "abc"),
    ];
    const SLURM: [(&str, &str); 7] = [
        ("SLURM_PROCID", "3"),
        ("SLURM_STEP_NUM_TASKS", "4"),
        ("SLURM_LOCALID", "0"),
        ("SLURM_JOB_ID", "12"),
        ("SLURM_STEP_ID", "0"),
        ("SLURM_STEP_NODELIST", "n[1-4]"),
        ("SLURMD_NODENAME", "n4"),
    ];
    const OPEN_MPI: [(&str, &str); 5] = [
        ("OMPI_COMM_WORLD_RANK", "1"),
        ("OMPI_COMM_WORLD_SIZE", "2"),
        ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
        ("OMPI_COMM_WORLD_LOCAL_SIZE", "2"),
        ("PMIX_NAMESPACE", "1234"),
    ];

    fn with<'a>(all: &[(&'a str, &'a str)], more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
        more.iter().chain(all).copied().collect()
    }

    #[test]
    fn launchers_are_known_by_their_variables() {
        check(&[], None);
        check(&TORCHRUN, Some((Launcher::Torchrun, 5, 8, 1, "node7:29501")));
        let at = format!("n1:{}", port_of("slurm 12.0"));
        check(&SLURM, Some((Launcher::Slurm, 3, 4, 0, &at)));
        let here = format!("127.0.0.1:{}", port_of("1234"));
        check(&OPEN_MPI, Some((Launcher::OpenMpi, 1, 2, 1, &here)));
        // The inner launcher counts.
        check(&with(&SLURM, &TORCHRUN), Some((Launcher::Torchrun, 5, 8, 1, "node7:29501")));
        let own = [("TRAINYARD_COORDINATOR", "10.0.0.1:700")];
        check(&with(&SLURM, &own), Some((Launcher::Slurm, 3, 4, 0, "10.0.0.1:700")));
        let mpich = [("PMI_RANK", "0"), ("PMI_SIZE", "2"), ("MPI_LOCALRANKID", "0")];
        check(&with(&mpich, &own), Some((Launcher::Mpich, 0, 2, 0, "10.0.0.1:700")));
    }

    #[test]
    fn a_process_alone_is_not_launched() {
        check(&with(&TORCHRUN, &[("WORLD_SIZE", "1"), ("RANK", "0")]), None);
        check(&with(&SLURM, &[("SLURM_STEP_NUM_TASKS", "1"), ("SLURM_PROCID", "0")]), None);
        // A batch script has ranks of its job, and no step.
        check(&[("SLURM_PROCID", "0"), ("SLURM_NTASKS", "4"), ("SLURM_JOB_ID", "12")], None);
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        let check = |variables: &[(&str, &str)], expect: &[&str]| {
            let problems = parse(variables).expect_err("it makes no sense");
            let text = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            assert!(expect.iter().all(|part| text.contains(part)), "{text}\nlacks one of {expect:?}");
        };
        check(&with(&TORCHRUN, &[("RANK", "x"), ("LOCAL_RANK", "-1")]), &["RANK: `x`", "LOCAL_RANK: `-1`"]);
        check(&with(&TORCHRUN, &[("RANK", "8")]), &["RANK: rank 8 is not one of the 8 that WORLD_SIZE counts"]);
        check(&with(&OPEN_MPI, &[("OMPI_COMM_WORLD_LOCAL_SIZE", "1")]), &["TRAINYARD_COORDINATOR: is not set"]);
        check(&with(&SLURM, &[("TRAINYARD_COORDINATOR", "here")]), &["`here` is not host:port"]);
        check(&with(&TORCHRUN, &[("MASTER_PORT", "65535")]), &["TRAINYARD_COORDINATOR: is not set"]);
    }

    #[test]
    fn the_first_host_of_a_list() {
        let check = |list: &str, expect: Option<&str>| assert_eq!(first_host(list).as_deref(), expect, "{list}");
        check("n1", Some("n1"));
        check("n1,n2", Some("n1"));
        check("n[1-4]", Some("n1"));
        check("gpu-[007,012-020]-ib,cpu1", Some("gpu-007-ib"));
        check("r[1-2]n[3-4]", Some("r1n3"));
        check("n[", None);
        check("", None);
    }
}
