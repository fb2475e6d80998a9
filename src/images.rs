//! What `build.rs` compiled from `csrc/` and the binary carries.

include!(concat!(env!("OUT_DIR"), "/images.rs"));
