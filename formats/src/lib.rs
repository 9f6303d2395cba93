//! trainyard-formats
