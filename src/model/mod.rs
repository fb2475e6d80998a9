//! What is served: the checkpoint's configuration and weights, and what they need of the device's memory.
//!
//! [`config`] reads `config.json` into one resolved description; [`tensors`] says which tensors such a checkpoint
//! holds; [`safetensors`] reads and checks one file's header; [`checkpoint`] opens a folder and gives typed access to
//! its bytes; [`plan`] is the memory arithmetic over the lines of [`footprint`].

pub mod checkpoint;
pub mod config;
mod fields;
pub mod footprint;
mod layers;
pub mod plan;
pub mod safetensors;
mod shards;
pub mod tensors;
