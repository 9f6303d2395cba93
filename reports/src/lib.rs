//! trainyard-reports
