//! trainyard-sched
