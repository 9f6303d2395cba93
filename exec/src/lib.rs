//! trainyard-exec
