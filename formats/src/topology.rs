//! What people have that says how devices and nodes are joined: `nvidia-smi topo -m`, a measured bandwidth matrix,
//! Slurm's `topology.conf`.
//!
//! Each reader gives a value or every fault with its line. What the descriptions amount to is found by [`Domains`]: which
//! devices of a node the fastest link joins.
//!
//! ```
//! use trainyard_formats::topology;
//! let text = "      GPU0  GPU1  GPU2  GPU3  CPU Affinity\n\
//!             GPU0   X    NV4   SYS   SYS   0-15\n\
//!             GPU1  NV4    X    SYS   SYS   0-15\n\
//!             GPU2  SYS   SYS    X    NV4   16-31\n\
//!             GPU3  SYS   SYS   NV4    X    16-31\n";
//! let matrix = topology::matrix::read(text, "topo.txt").expect("a whole matrix");
//! assert_eq!(matrix.domains().uniform(), Ok(2));
//! assert_eq!(matrix.ring(&[0, 1]), topology::matrix::Connection::NvLink(4));
//! assert_eq!(matrix.ring(&[0, 1, 2]), topology::matrix::Connection::System);
//! ```

pub mod bandwidth;
pub mod matrix;
pub mod rates;
pub mod slurm;

mod hostlist;
#[cfg(test)]
mod tests;

/// Devices of one node, divided into those that the fastest link joins. Devices are counted from 0.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Domains {
    /// Each domain's devices in order; domains in the order of their first device.
    pub groups: Vec<Vec<usize>>,
}

impl Domains {
    /// Connected components of `joined` over `count` devices.
    fn components(count: usize, joined: impl Fn(usize, usize) -> bool) -> Self {
        let mut group_of = vec![usize::MAX; count];
        let mut groups = Vec::new();
        for first in 0..count {
            if group_of[first] != usize::MAX {
                continue;
            }
            group_of[first] = groups.len();
            let mut members = vec![first];
            let mut next = 0;
            while next < members.len() {
                let from = members[next];
                for (to, group) in group_of.iter_mut().enumerate() {
                    if *group == usize::MAX && joined(from, to) {
                        *group = groups.len();
                        members.push(to);
                    }
                }
                next += 1;
            }
            members.sort_unstable();
            groups.push(members);
        }
        Self { groups }
    }

    /// The devices of each domain, where all domains are equally large and numbered one after another: what a kind of node
    /// can say.
    ///
    /// # Errors
    /// Why not, and what would: the order in which devices are to be numbered, or that domains are unlike.
    pub fn uniform(&self) -> Result<usize, String> {
        let size = self.groups.first().map_or(0, Vec::len);
        let list = |group: &[usize]| group.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
        if self.groups.iter().any(|group| group.len() != size) {
            let all = self.groups.iter().map(|group| format!("{{{}}}", list(group))).collect::<Vec<_>>().join(" ");
            return Err(format!("its domains are of unlike size: {all}; write domain_size yourself"));
        }
        let order: Vec<usize> = self.groups.iter().flatten().copied().collect();
        if order.iter().enumerate().any(|(place, device)| place != *device) {
            return Err(format!(
                "devices of one domain are not numbered one after another; number them so: CUDA_VISIBLE_DEVICES={}",
                list(&order)
            ));
        }
        Ok(size)
    }
}
