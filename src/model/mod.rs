//! What is served: the checkpoint's configuration and weights, the forward pass, and the kernels it is made of.
//!
//! [`config`] reads `config.json` into one resolved description; [`tensors`] says which tensors such a checkpoint
//! holds; [`safetensors`] reads and checks one file's header; [`weight_format`] knows the quantised forms, which are
//! refused; [`checkpoint`] opens a folder and gives typed access to its bytes, or to the made-up ones of [`synthetic`];
//! [`source`] says which. [`weights`] puts them on the device, [`cache`] is the KV cache there, [`forward`] enqueues
//! [`kernels`] over both, a layer's [`experts`] among them, and [`plan`] says how large everything is.

pub mod cache;
pub mod checkpoint;
pub mod config;
pub mod experts;
mod fields;
mod footprint;
pub mod forward;
pub mod kernels;
mod layers;
pub mod plan;
pub mod safetensors;
mod shards;
pub mod source;
pub mod synthetic;
pub mod tensors;
pub mod weight_format;
pub mod weights;
