//! The async side as clients see it, on a scripted engine: one program, since linking costs more than running.

mod cancel;
mod chat;
mod completions;
mod connections;
mod lifecycle;
mod refusals;
mod support;
