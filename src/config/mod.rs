//! A pipeline file, read, overridden and validated.
//!
//! Order: defaults, the file, `CDCPROBE_<SECTION>_<KEY>` from the environment, `--set section.key=value`. [`raw`] is
//! what TOML may hold (`deny_unknown_fields`); [`Pipeline`] is what the rest of the program sees.

pub mod endpoint;
pub mod load;
pub mod pipeline;
pub mod probe;
pub mod raw;
pub mod values;

pub use endpoint::{Secret, SourceEndpoint, TargetEndpoint};
pub use pipeline::{BatchLimits, LabPlan, Pipeline, SinkKind, TableName, Transactions};
pub use probe::{BackfillProbe, Bounds, DrainProbe, LoadPlan, Probe, ProbeKind, Workload};
pub use values::{ValuePolicies, ValuePolicy};
