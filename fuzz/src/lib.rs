//! What the fuzz targets call, and a plain driver's way to change inputs.

pub mod entries;
pub mod mutate;
