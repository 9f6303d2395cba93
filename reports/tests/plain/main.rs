//! The plain tables' pages and files, of numbers that are known beforehand.

mod files;
mod pages;
mod support;
