//! Enums whose variants have a name in text: the one that scenario files, results and reports use.

/// Gives an enum `ALL`, `name` and `from_name`.
macro_rules! named {
    ($type:ty { $($variant:ident = $name:literal),+ $(,)? }) => {
        impl $type {
            /// All of them, in order.
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$variant),+];
            /// Its name in text.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
            /// The one of a name.
            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|one| one.name() == name)
            }
        }
    };
}

pub(crate) use named;

#[cfg(test)]
mod tests {
    use crate::{
        AttentionKernel, BranchNorms, CollectiveAlgorithm, ContextMethod, GradientFormat, LogitCopies, MlpKind,
        NormKind, ParallelBranches, QueryKeyNorm, Recompute,
    };

    /// Names are distinct, lead back, and are those that serde writes.
    macro_rules! check {
        ($($type:ty),+) => {
            $(for one in <$type>::ALL {
                assert_eq!(<$type>::from_name(one.name()), Some(one));
                assert_eq!(toml::Value::try_from(one).expect("a word"), toml::Value::from(one.name()));
            })+
        };
    }

    #[test]
    fn names_lead_back_and_are_those_of_results() {
        check!(
            AttentionKernel,
            BranchNorms,
            CollectiveAlgorithm,
            ContextMethod,
            GradientFormat,
            LogitCopies,
            MlpKind,
            NormKind
        );
        check!(ParallelBranches, QueryKeyNorm, Recompute);
        assert_eq!(MlpKind::from_name("relu"), None);
    }
}
