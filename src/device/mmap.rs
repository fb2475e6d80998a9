//! Read-only maps of files: weights are uploaded straight from the page cache.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

use memmap2::Mmap;

/// Maps a regular file read-only. Whoever holds the map relies on nobody truncating the file meanwhile: a read past a
/// new end would end the process (SIGBUS). Checkpoints are opened, uploaded and unmapped at start.
pub fn map_read_only(path: &Path) -> Result<Mmap> {
    // Looked at before opening: opening a pipe would wait for its writer.
    if !path.metadata()?.is_file() {
        return Err(Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let file = File::open(path)?;
    // SAFETY: the map is private to this process and only read through `&[u8]`. Nothing in this process writes the
    // file; that no other process changes it while it is mapped is the documented condition of serving from it, and
    // every number read from it is checked before it is used as an index.
    unsafe { Mmap::map(&file) }
}
