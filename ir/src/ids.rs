//! Typed indices. An id is made by the container that owns the thing; a raw number is asked for by name.

macro_rules! index {
    ($($(#[$doc:meta])* $name:ident, $letter:literal;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, serde::Serialize, serde::Deserialize)]
        #[serde(transparent)]
        pub struct $name(u32);
        impl $name {
            /// The id of position `index` in its container.
            #[must_use]
            pub const fn new(index: u32) -> Self { Self(index) }
            /// The id of position `index`.
            ///
            /// # Panics
            /// If a container outgrew `u32`, which only a bug can cause.
            #[must_use]
            pub fn at(index: usize) -> Self {
                Self(u32::try_from(index).expect(concat!(stringify!($name), " outgrew u32")))
            }
            /// The position in the container.
            #[must_use]
            pub const fn index(self) -> usize { self.0 as usize }
            /// The raw number.
            #[must_use]
            pub const fn raw(self) -> u32 { self.0 }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { write!(f, concat!($letter, "{}"), self.0) }
        }
    )*};
}

index! {
    /// A device of a [`crate::Cluster`], numbered node by node.
    DeviceId, "d";
    /// A kind of device.
    DeviceKindId, "k";
    /// A node of a cluster.
    NodeId, "n";
    /// A kind of node.
    NodeKindId, "nk";
    /// A worker of a program, before placement on a device.
    Rank, "r";
    /// A set of ranks that carry out the same instruction list.
    RoleId, "role";
    /// A pipeline position.
    StageId, "s";
    /// One virtual stage: chunk `c` sits on pipeline position `c % pipeline` (or as the plan's order says).
    ChunkId, "c";
    /// A microbatch of an iteration.
    MicrobatchId, "m";
    /// An instruction's position in its role's list; the same in the folded and in the unfolded program.
    InstructionId, "i";
    /// A family of equal groups of ranks.
    GroupId, "g";
    /// A buffer of a role.
    BufferId, "b";
}
