//! The clients: each a connection and a loop, several to a thread, all bounded in time.
//!
//! ```text
//! start() ─> thread 0: runtime ─ client 0, client 2 … ─┐ connected and prepared
//!         └> thread 1: runtime ─ client 1, client 3 … ─┴─> start time for all ─> … ─> logs ─> finish()
//! ```
//!
//! **The bound.** No client sends after the duration is over or the token is cancelled. A statement under way then may
//! still be answered for [`GRACE`]; after that its connection is dropped and it counts as unanswered, for it may be
//! committed. So the load ends at its bound plus the grace, whatever the server does.

use std::{
    cell::RefCell,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, anyhow, bail};
use futures_util::{StreamExt, future::try_join_all, stream::FuturesUnordered};
use rustix::time::{ClockId, clock_gettime};
use tokio::{
    sync::{oneshot, watch},
    time::{sleep, sleep_until},
};
use tokio_postgres::Client;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{
    outcome::{LoadCounters, LoadResult, Log, merge},
    schedule::Schedule,
    workload::Session,
};
use crate::{
    config::{LoadPlan, SourceEndpoint},
    postgres::connect::sql_session,
};

/// How long a statement that is under way at the end may still take.
pub const GRACE: Duration = Duration::from_secs(10);
/// Clients of one thread. One thread sends some 10,000 statements a second.
const CLIENTS_PER_THREAD: u32 = 16;

/// Statements that a client sees refused in a row before it gives up: a full disk is not to be hammered.
const PATIENCE: u32 = 100;

/// A load under way. Dropping it stops the clients.
pub struct Running {
    counters: Arc<LoadCounters>,
    shards: Vec<oneshot::Receiver<Result<Shard>>>,
    started: Instant,
    clients: u32,
    _stop: DropGuard,
}

/// One thread's part.
struct Shard {
    log: Log,
    cpu: Duration,
}

/// What every client of a thread is given.
#[derive(Clone)]
struct Orders {
    endpoint: SourceEndpoint,
    plan: LoadPlan,
    counters: Arc<LoadCounters>,
    cancel: CancellationToken,
}

/// Connects and prepares every client, then lets all of them go at once; returns when they have started.
///
/// Errors: a client cannot connect or its statements cannot be prepared; none has written anything then.
pub async fn start(
    endpoint: &SourceEndpoint,
    plan: &LoadPlan,
    cancel: &CancellationToken,
) -> Result<Running> {
    let cancel = cancel.child_token();
    let counters = Arc::new(LoadCounters::default());
    let (go, gone) = watch::channel(None);
    let orders =
        Orders { endpoint: endpoint.clone(), plan: plan.clone(), counters: counters.clone(), cancel };
    let stop = orders.cancel.clone().drop_guard();
    let (mut ready, mut shards) = (Vec::new(), Vec::new());
    for (index, numbers) in split(plan.clients).into_iter().enumerate() {
        let (report_ready, is_ready) = oneshot::channel();
        let (report, result) = oneshot::channel();
        let (orders, gone) = (orders.clone(), gone.clone());
        thread::Builder::new()
            .name(format!("load-{index}"))
            .spawn(move || {
                let shard = run_thread(&orders, &numbers, report_ready, gone);
                // Nobody hears it when the load was dropped.
                let _ = report.send(shard);
            })
            .context("start a thread for the load")?;
        ready.push(async { is_ready.await.map_err(|_| anyhow!("a thread of the load died"))? });
        shards.push(result);
    }
    tokio::select! {
        outcome = try_join_all(ready) => outcome.map(drop)?,
        // A table that somebody has locked keeps the statements from being prepared.
        () = orders.cancel.cancelled() => bail!("the load was cancelled before it started"),
    }
    let started = Instant::now();
    go.send_replace(Some(started));
    Ok(Running { counters, shards, started, clients: plan.clients, _stop: stop })
}

impl Running {
    /// Live counters, to be read by meters.
    pub fn counters(&self) -> &Arc<LoadCounters> {
        &self.counters
    }

    pub fn started(&self) -> Instant {
        self.started
    }

    /// Waits until every client has stopped. To stop earlier, cancel the token given to [`start`].
    pub async fn finish(self) -> Result<LoadResult> {
        let (mut logs, mut cpu) = (Vec::new(), Duration::ZERO);
        for shard in self.shards {
            let shard = shard.await.map_err(|_| anyhow!("a thread of the load died"))??;
            logs.push(shard.log);
            cpu += shard.cpu;
        }
        Ok(merge(logs, self.started, self.clients, cpu.as_secs_f64()))
    }
}

/// Client numbers by thread.
fn split(clients: u32) -> Vec<Vec<u32>> {
    let cores = thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let threads = clients.div_ceil(CLIENTS_PER_THREAD).clamp(1, cores);
    (0..threads).map(|thread| (thread..clients).step_by(threads as usize).collect()).collect()
}

fn run_thread(
    orders: &Orders,
    numbers: &[u32],
    ready: oneshot::Sender<Result<()>>,
    go: watch::Receiver<Option<Instant>>,
) -> Result<Shard> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.context("start a runtime for the load")?;
    runtime.block_on(run_shard(orders, numbers, ready, go))
}

async fn run_shard(
    orders: &Orders,
    numbers: &[u32],
    ready: oneshot::Sender<Result<()>>,
    mut go: watch::Receiver<Option<Instant>>,
) -> Result<Shard> {
    let sessions = tokio::select! {
        sessions = try_join_all(numbers.iter().map(|&number| connect(orders, number))) => sessions,
        () = orders.cancel.cancelled() => Err(anyhow!("the load was cancelled before it started")),
    };
    let sessions = match sessions {
        Ok(sessions) => sessions,
        Err(error) => {
            // The one who waits for us to be ready hears of it; then nobody waits for the result.
            let _ = ready.send(Err(error));
            return Err(anyhow!("the load did not start"));
        }
    };
    let _ = ready.send(Ok(()));
    let started = go.wait_for(Option::is_some).await.map_err(|_| anyhow!("the load did not start"))?;
    let started = started.expect("waited for");
    let cpu_before = thread_cpu();
    let log = RefCell::new(Log::new(started));
    let clients: FuturesUnordered<_> = sessions
        .into_iter()
        .map(|(number, client, session)| run_client(orders, number, client, session, started, &log))
        .collect();
    clients.for_each(|()| std::future::ready(())).await;
    let cpu = thread_cpu().saturating_sub(cpu_before);
    Ok(Shard { log: log.into_inner(), cpu })
}

async fn connect(orders: &Orders, number: u32) -> Result<(u32, Client, Session)> {
    let client = sql_session(&orders.endpoint, "cdcprobe load").await?;
    let session = Session::prepare(&client, &orders.plan, number).await?;
    Ok((number, client, session))
}

/// One client until the bound, or until its connection is lost.
async fn run_client(
    orders: &Orders,
    number: u32,
    client: Client,
    mut session: Session,
    started: Instant,
    log: &RefCell<Log>,
) {
    let schedule = Schedule::new(orders.plan.rate_per_s, orders.plan.clients);
    let end = started + orders.plan.duration;
    let hard_stop = hard_stop(&orders.cancel, end);
    tokio::pin!(hard_stop);
    let mut free_since = started;
    let mut ordinal = 0;
    let mut refused_in_a_row = 0;
    loop {
        let intended = schedule.intended(number, ordinal).map(|after| started + after);
        if intended.is_some_and(|at| at >= end) || !reached(intended, &orders.cancel, log).await {
            break;
        }
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        log.borrow_mut().think += sent - free_since;
        ordinal += 1;
        let answer = tokio::select! {
            biased;
            answer = session.run(&client) => Some(answer),
            () = &mut hard_stop => None,
        };
        free_since = Instant::now();
        match answer {
            Some(Ok(rows)) => {
                refused_in_a_row = 0;
                orders.counters.answered(rows);
                log.borrow_mut().answered(intended.unwrap_or(sent), sent, free_since, rows);
            }
            Some(Err(error)) if client.is_closed() || error.is_closed() => {
                log.borrow_mut().lost(&error);
                break;
            }
            Some(Err(error)) => {
                log.borrow_mut().refused(&error);
                refused_in_a_row += 1;
                if refused_in_a_row == PATIENCE {
                    break;
                }
            }
            None => {
                log.borrow_mut().unanswered += 1;
                break;
            }
        }
    }
    if !orders.cancel.is_cancelled() {
        let meant = schedule.intended_within(number, orders.plan.duration);
        log.borrow_mut().unsent += meant.saturating_sub(ordinal);
    }
}

/// Waits for the intended time, if it is ahead; `false` when the load was cancelled.
async fn reached(intended: Option<Instant>, cancel: &CancellationToken, log: &RefCell<Log>) -> bool {
    if let Some(at) = intended.filter(|&at| at > Instant::now()) {
        tokio::select! {
            () = sleep_until(at.into()) => {}
            () = cancel.cancelled() => return false,
        }
        let mut log = log.borrow_mut();
        log.max_wake_late = log.max_wake_late.max(at.elapsed());
    }
    !cancel.is_cancelled()
}

/// Completes [`GRACE`] after the end or the cancellation, whichever is first.
async fn hard_stop(cancel: &CancellationToken, end: Instant) {
    tokio::select! {
        () = sleep_until(end.into()) => {}
        () = cancel.cancelled() => {}
    }
    sleep(GRACE).await;
}

/// CPU that this thread has used, user and system.
fn thread_cpu() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_one_thread() {
        for clients in [1, 2, 16, 17, 128] {
            let mut all: Vec<u32> = split(clients).concat();
            all.sort_unstable();
            assert_eq!(all, (0..clients).collect::<Vec<_>>());
            assert!(split(clients).iter().all(|thread| !thread.is_empty()));
        }
    }
}
