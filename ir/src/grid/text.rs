//! Text form of grids.
