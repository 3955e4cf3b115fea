//! Workloads, experiments and reports for lsmx.
