//! trainyard-benches
