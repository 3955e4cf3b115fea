//! Converts between enum variants and the names that users type on the command line.

/// Implements `Display` and `FromStr` for an enum with a constant `ALL` and a method `name`. The error for an
/// unknown name lists the known names.
macro_rules! impl_names {
    ($named:ty, $what:literal) => {
        impl std::fmt::Display for $named {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }

        impl std::str::FromStr for $named {
            type Err = String;

            fn from_str(text: &str) -> std::result::Result<Self, String> {
                <$named>::ALL.into_iter().find(|known| known.name() == text).ok_or_else(|| {
                    let known = <$named>::ALL.map(<$named>::name).join(", ");
                    format!("unknown {} {text:?}; known: {known}", $what)
                })
            }
        }
    };
}

pub(crate) use impl_names;

#[cfg(test)]
mod tests {
    use std::fmt::Debug;
    use std::str::FromStr;

    use crate::experiment::bench_experiment::BenchExperiment;
    use crate::experiment::rmw::{RmwStudy, UpdateMode, ValuePlacement};
    use crate::experiment::throughput::workload::Workload;
    use crate::workload::operation_mix::OperationMix;
    use crate::workload::record::RecordFormat;

    fn check<T>(all: &[T], name: impl Fn(T) -> &'static str)
    where
        T: Copy + Debug + PartialEq + ToString + FromStr<Err = String>,
    {
        for &named in all {
            assert_eq!(named.to_string(), name(named));
            assert_eq!(named.to_string().parse(), Ok(named));
        }
        let error = "nonsense".parse::<T>().unwrap_err();
        assert!(
            error.starts_with("unknown ") && error.contains("\"nonsense\"; known: "),
            "{error}"
        );
        assert!(all.iter().all(|named| error.contains(&named.to_string())), "{error}");
    }

    #[test]
    fn names_parse_back_and_unknown_names_list_the_known_ones() {
        check(&ValuePlacement::ALL, ValuePlacement::name);
        check(&RecordFormat::ALL, RecordFormat::name);
        check(&UpdateMode::ALL, UpdateMode::name);
        check(&OperationMix::ALL, OperationMix::name);
        check(&RmwStudy::ALL, RmwStudy::name);
        check(&Workload::ALL, Workload::name);
        check(&BenchExperiment::ALL, BenchExperiment::name);
    }
}
