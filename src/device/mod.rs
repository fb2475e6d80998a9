//! What stands next to the operating system and the driver; nothing here knows of Gemma.

pub mod mmap;
