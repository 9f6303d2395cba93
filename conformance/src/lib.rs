//! trainyard-conformance
