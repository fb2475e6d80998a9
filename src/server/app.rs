//! What all handlers share: the engine's handle, the served model once it is loaded, and who is in flight.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use metrics_exporter_prometheus::PrometheusHandle;
use parking_lot::Mutex;
use tokio::sync::{Notify, Semaphore};

use crate::config::Config;
use crate::engine::handle::{EngineHandle, EngineState, Refusal};
use crate::error::Rejection;
use crate::limits::{LARGE_BODIES_BYTES_MAX, SMALL_BODY_BYTES_MAX};
use crate::server::ServedModel;

pub struct App {
    pub config: Config,
    pub engine: EngineHandle,
    pub metrics: PrometheusHandle,
    /// Unix time of the start, for `/v1/models`.
    pub started_s: u64,
    /// What large bodies may take together, in units of [`SMALL_BODY_BYTES_MAX`].
    pub large_bodies: Arc<Semaphore>,
    /// Set once, by the engine start; the socket is bound before.
    model: OnceLock<Arc<ServedModel>>,
    /// A signal came: readiness is off, whether or not requests are still accepted.
    leaving: AtomicBool,
    in_flight: AtomicUsize,
    idle: Notify,
    /// Request ids of the requests in flight.
    live_ids: Mutex<HashSet<String>>,
    /// Makes request ids differ between processes.
    id_salt: u64,
    id_next: AtomicU64,
}

impl App {
    pub fn new(config: Config, engine: EngineHandle) -> Arc<Self> {
        Arc::new(Self {
            config,
            engine,
            metrics: crate::metrics::install(),
            started_s: unix_time_s(),
            large_bodies: Arc::new(Semaphore::new(LARGE_BODIES_BYTES_MAX / SMALL_BODY_BYTES_MAX)),
            model: OnceLock::new(),
            leaving: AtomicBool::new(false),
            in_flight: AtomicUsize::new(0),
            idle: Notify::new(),
            live_ids: Mutex::new(HashSet::new()),
            id_salt: RandomState::new().hash_one(std::process::id()),
            id_next: AtomicU64::new(1),
        })
    }

    /// The engine start's `on_ready`.
    pub fn set_model(&self, model: ServedModel) {
        let labels = [("version", env!("CARGO_PKG_VERSION").to_owned()), ("model", model.id.clone())];
        metrics::gauge!(crate::metrics::BUILD_INFO, &labels).set(1.0);
        let _ = self.model.set(Arc::new(model));
    }

    /// The model, or the refusal while it is loading.
    pub fn model(&self) -> Result<Arc<ServedModel>, Rejection> {
        self.model.get().cloned().ok_or(Rejection::Refused(Refusal::Loading))
    }

    /// What the door would say now, for an early answer; the door itself decides.
    pub fn accepting(&self) -> Result<(), Rejection> {
        match self.engine.state() {
            EngineState::Ready => Ok(()),
            EngineState::Loading => Err(Refusal::Loading.into()),
            EngineState::Draining => Err(Refusal::Draining.into()),
            EngineState::Dead(reason) => Err(Refusal::Dead(reason).into()),
        }
    }

    /// Whether a balancer should send requests here; takes no lock that work could hold for long (B90).
    pub fn ready(&self) -> Result<(), Rejection> {
        self.accepting()?;
        if self.leaving.load(Ordering::Acquire) {
            return Err(Refusal::Draining.into());
        }
        if let Some(stalled) = self.engine.stalled_for()
            && stalled >= self.config.stall_timeout
        {
            return Err(Rejection::Stalled { stalled_s: stalled.as_secs_f64() });
        }
        self.model().map(|_| ())
    }

    /// Turns readiness off for good.
    pub fn leave(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    /// Takes part in the drain's count from here until the guard is dropped, at the end of the answer's body. Refuses
    /// an id that is still in flight.
    pub fn enter(self: &Arc<Self>, id: &str) -> Result<InFlight, Rejection> {
        if !self.live_ids.lock().insert(id.to_owned()) {
            return Err(Rejection::DuplicateRequestId(id.to_owned()));
        }
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        Ok(InFlight { app: self.clone(), id: id.to_owned() })
    }

    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Acquire)
    }

    /// Waits until no request is in flight.
    pub async fn idle(&self) {
        loop {
            let notified = self.idle.notified();
            tokio::pin!(notified);
            // Registered before the look, so that no end is missed.
            notified.as_mut().enable();
            if self.in_flight() == 0 {
                return;
            }
            notified.await;
        }
    }

    /// An id for a request that brought none.
    pub fn make_id(&self) -> String {
        format!("{:016x}-{:x}", self.id_salt, self.id_next.fetch_add(1, Ordering::Relaxed))
    }
}

/// One request between its arrival and the end of its answer.
pub struct InFlight {
    app: Arc<App>,
    id: String,
}

impl InFlight {
    pub fn id(&self) -> &str {
        &self.id
    }

    pub fn app(&self) -> &Arc<App> {
        &self.app
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        self.app.live_ids.lock().remove(&self.id);
        if self.app.in_flight.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.app.idle.notify_waiters();
        }
    }
}

/// The wall clock, only for the `created` fields of the API.
pub fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}
