//! trainyard
