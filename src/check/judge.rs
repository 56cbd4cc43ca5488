//! Facts in, findings out. Pure.
//!
//! What the pipe itself refuses is judged by the pipe's own functions ([`catalog`], [`ddl`], [`checkpoint::resume`]), so
//! that both say the same words; here is what only a preflight asks for: rights, settings that bite later, other people's
//! publications.

use super::{
    facts::{Breaking, Server, SourceFacts, TableDetail, TableFacts, TargetFacts},
    finding::{Finding, Side},
};
use crate::{
    change::{Identity, Table},
    config::{Pipeline, SinkKind, TableName},
    failure::{Failure, Kind},
    load::table::{MARK, foreign},
    pipeline::checkpoint,
    postgres::{
        catalog,
        quote::{identifier, qualified},
    },
    sink::clickhouse::{
        ddl::{self, Place},
        quote,
    },
    source::slot,
};

/// A snapshot's temporary slot and the permanent one are there at once.
const SLOTS_OF_A_PIPE: usize = 2;
/// Under this much WAL a busy server loses a slot within minutes.
const SMALL_WAL_KEEP_MIB: i64 = 1024;
/// Status updates go out every few seconds: a server that waits less cuts them off.
const SHORT_SENDER_TIMEOUT_MS: i64 = 10_000;

/// What the file asks for, apart from the servers.
#[derive(Clone, Debug)]
pub struct Plan {
    pub slot: String,
    pub publication: String,
    /// What `pipe` follows; empty: the file has probes only, whose slots and publications are made and removed by them.
    pub followed: Vec<TableName>,
    /// Not into nothing (`target.kind = "null"`).
    pub into_clickhouse: bool,
}

impl Plan {
    pub fn new(pipeline: &Pipeline) -> Plan {
        Plan {
            slot: pipeline.slot.clone(),
            publication: pipeline.publication.clone(),
            followed: pipeline.tables.clone(),
            into_clickhouse: pipeline.sink == SinkKind::ClickHouse,
        }
    }
}

/// Everything that there is to say, in the order: server, slot, publication, tables, target.
pub fn judge(plan: &Plan, source: Option<&SourceFacts>, target: Option<&TargetFacts>) -> Vec<Finding> {
    let mut found = Vec::new();
    if let Some(source) = source {
        found.extend(server(plan, source));
        if !plan.followed.is_empty() {
            found.extend(slot_state(plan, source, target));
        }
        found.extend(publication(plan, source));
        found.extend(source.breaking.iter().map(|breaking| break_of(plan, breaking)));
        found.extend(source.tables.iter().flat_map(|table| table_findings(source, table)));
    }
    found.extend(target.into_iter().flat_map(grants));
    if let Some(source) = source.filter(|_| plan.into_clickhouse) {
        found.extend(places(plan, source, target));
    }
    found
}

fn server(plan: &Plan, source: &SourceFacts) -> Vec<Finding> {
    let server = &source.server;
    let mut found = replication_right(source);
    if server.is_standby {
        let failure = Failure::environment("the source is a standby: it takes no publication and no marker")
            .hint("name the primary in source.url");
        found.push(Finding::refused(Side::Source, "standby", failure));
    }
    let slots = if source.slot.is_some() && !plan.followed.is_empty() { 0 } else { SLOTS_OF_A_PIPE };
    for failure in catalog::capacity_failures(&source.capacity, slots) {
        let is_level = failure.message.contains("wal_level");
        let finding = Finding::refused(Side::Source, "settings", failure);
        found.push(match is_level {
            true => finding.mended_by("alter system set wal_level = logical"),
            false => finding,
        });
    }
    found.extend(settings(server));
    found
}

fn replication_right(source: &SourceFacts) -> Vec<Finding> {
    let server = &source.server;
    let role = &server.role;
    if server.is_superuser || server.may_replicate {
        let refused = |failure: &Failure| Finding::refused(Side::Source, "replication", failure.clone());
        return source.system.as_ref().err().map(refused).into_iter().collect();
    }
    // Managed services grant it by a role of theirs: where the session was let in, the attribute does not matter.
    if source.system.is_ok() {
        return Vec::new();
    }
    let sql = format!("alter role {} replication", identifier(role));
    let failure = Failure::environment(format!("role {role} may not open a replication session")).hint(&sql);
    vec![Finding::refused(Side::Source, role, failure).mended_by(sql)]
}

/// Settings that let a pipe start and lose its slot later.
fn settings(server: &Server) -> Vec<Finding> {
    let mut found = Vec::new();
    let mut warn = |setting: &str, message: String, hint: &str| {
        let failure = Failure::environment(message).hint(hint);
        found.push(Finding::warning(Side::Source, setting, failure));
    };
    match server.max_slot_wal_keep_mib {
        Some(-1) => warn(
            "max_slot_wal_keep_size",
            "max_slot_wal_keep_size is -1: a pipe that is stopped makes the server keep WAL until its disk is full"
                .to_owned(),
            "watch the slot, or set a bound that leaves room for the longest stop: a slot beyond it is lost",
        ),
        Some(mib) if mib < SMALL_WAL_KEEP_MIB => warn(
            "max_slot_wal_keep_size",
            format!("max_slot_wal_keep_size is {mib} MiB: a pipe that falls behind by more loses its slot"),
            "raise it to the WAL of the longest stop that a pipe must survive",
        ),
        _ => {}
    }
    match server.wal_sender_timeout_ms {
        0 => warn(
            "wal_sender_timeout",
            "wal_sender_timeout is 0: a connection that broke unseen keeps the slot busy for ever".to_owned(),
            "the default, 60 s, does well",
        ),
        short if short < SHORT_SENDER_TIMEOUT_MS => warn(
            "wal_sender_timeout",
            format!("wal_sender_timeout is {short} ms: a busy machine may miss it, and the stream breaks"),
            "the default, 60 s, does well",
        ),
        _ => {}
    }
    if let Some(seconds @ 1..) = server.idle_slot_timeout_s {
        warn(
            "idle_replication_slot_timeout",
            format!(
                "idle_replication_slot_timeout is {seconds} s: a pipe that is stopped for longer loses its slot"
            ),
            "0 switches it off",
        );
    }
    found
}

fn slot_state(plan: &Plan, source: &SourceFacts, target: Option<&TargetFacts>) -> Vec<Finding> {
    let mut found = Vec::new();
    let name = &plan.slot;
    if let Err(failure) = slot::check_name(name) {
        found.push(Finding::refused(Side::File, name, failure));
    }
    if let (Ok(system), Some(target)) = (&source.system, target) {
        let checkpoint = target.checkpoint.as_ref();
        let resumed = checkpoint::resume(name, &source.database, checkpoint, source.slot.as_ref(), *system);
        found.extend(resumed.err().map(|failure| Finding::refused(Side::Source, name, failure)));
    } else if let Some(slot) = &source.slot {
        let judged = checkpoint::check_slot(name, &source.database, slot);
        found.extend(judged.err().map(|failure| Finding::refused(Side::Source, name, failure)));
    }
    let Some(slot) = &source.slot else { return found };
    if let Some(pid) = slot.active_pid {
        let failure =
            Failure::environment(format!("replication slot {name} is in use by process {pid} of the source"))
                .hint("another pipe streams from it: stop that one first, or give source.slot another name");
        found.push(Finding::refused(Side::Source, name, failure));
    }
    if slot.wal_status.as_deref() == Some("unreserved") {
        let message = format!(
            "replication slot {name} is behind by more than max_slot_wal_keep_size: the next checkpoint may remove its WAL"
        );
        let failure = Failure::source(message).hint("start its pipe now, or raise max_slot_wal_keep_size");
        found.push(Finding::warning(Side::Source, name, failure));
    }
    found
}

fn publication(plan: &Plan, source: &SourceFacts) -> Vec<Finding> {
    let name = &plan.publication;
    if let Some(publication) = source.publication.as_ref().filter(|_| !plan.followed.is_empty()) {
        let present: Vec<TableName> = existing(source).map(|table| table.wanted.name.clone()).collect();
        let followed: Vec<TableName> =
            plan.followed.iter().filter(|table| present.contains(table)).cloned().collect();
        let failures = catalog::publication_failures(name, publication, &followed);
        let finding = |(table, failure): (Option<TableName>, Failure)| {
            let subject = table.map_or_else(|| name.clone(), |table| table.to_string());
            Finding::refused(Side::Source, subject, failure).mended_by_hint()
        };
        return failures.into_iter().map(finding).collect();
    }
    rights_to_publish(source)
}

/// A publication is to be made: that takes CREATE on the database, and to own every table in it.
fn rights_to_publish(source: &SourceFacts) -> Vec<Finding> {
    let server = &source.server;
    if server.is_superuser {
        return Vec::new();
    }
    let mut found = Vec::new();
    if !server.may_create {
        let (role, database) = (&server.role, &source.database);
        let sql = format!("grant create on database {} to {}", identifier(database), identifier(role));
        let failure =
            Failure::environment(format!("role {role} may not make a publication in database {database}"))
                .hint(&sql);
        found.push(Finding::refused(Side::Source, role, failure).mended_by(sql));
    }
    for table in existing(source).filter(|table| !table.wanted.by_probe) {
        let Some(detail) = table.detail.as_ref().filter(|detail| !detail.is_owner) else { continue };
        found.push(not_owner(&server.role, &table.wanted.name, detail));
    }
    found
}

fn not_owner(role: &str, table: &TableName, detail: &TableDetail) -> Finding {
    let sql = format!("grant {} to {}", identifier(&detail.owner), identifier(role));
    let message = format!(
        "role {role} does not own table {table} ({} does), and so cannot put it into a publication",
        detail.owner
    );
    let failure =
        Failure::environment(message).hint(format!("let the owner make the publication, or: {sql}"));
    Finding::refused(Side::Source, table.to_string(), failure).mended_by(sql)
}

fn existing(source: &SourceFacts) -> impl Iterator<Item = &TableFacts> {
    source.tables.iter().filter(|table| table.inspected.table.is_some())
}

/// Its own publication is the pipe's business; another's is told, because it hurts already.
fn break_of(plan: &Plan, breaking: &Breaking) -> Finding {
    let Breaking { publication, table } = breaking;
    let message = format!(
        "publication {publication} publishes updates and deletes of table {table}, which has no replica identity: the \
         application's own UPDATE and DELETE of it fail"
    );
    let sql = format!("alter publication {} drop table {}", identifier(publication), qualified(table));
    let failure = Failure::config(message).hint(format!("give the table a primary key, or: {sql}"));
    if *publication == plan.publication && !plan.followed.is_empty() {
        Finding::refused(Side::Source, table.to_string(), failure)
    } else {
        Finding::warning(Side::Source, table.to_string(), failure)
    }
}

fn table_findings(source: &SourceFacts, facts: &TableFacts) -> Vec<Finding> {
    let name = &facts.wanted.name;
    if facts.wanted.by_probe {
        return probe_table(facts);
    }
    let refused = |failure: &Failure| Finding::refused(Side::Source, name.to_string(), failure.clone());
    let mut found: Vec<Finding> = facts.inspected.failures.iter().map(refused).collect();
    let (Some(table), Some(detail)) = (&facts.inspected.table, &facts.detail) else { return found };
    mend_key(&mut found, &table.table, detail, name);
    found.extend(table_rights(&source.server.role, name, detail));
    found.extend(table_notes(&table.table, name, detail));
    found
}

/// The missing key's finding gets an index that would do as replica identity, where there is one.
fn mend_key(found: &mut [Finding], table: &Table, detail: &TableDetail, name: &TableName) {
    if !table.key().is_empty() {
        return;
    }
    let Some(finding) = found.iter_mut().find(|finding| finding.message.contains("has no key")) else {
        return;
    };
    if let Some(index) = &detail.candidate_index {
        let sql =
            format!("alter table {} replica identity using index {}", qualified(name), identifier(index));
        finding.hint = Some(sql.clone());
        finding.fix.push(sql);
    }
}

fn table_rights(role: &str, name: &TableName, detail: &TableDetail) -> Vec<Finding> {
    let mut found = Vec::new();
    if !detail.may_select {
        let sql = format!("grant select on table {} to {}", qualified(name), identifier(role));
        let schema = format!("grant usage on schema {} to {}", identifier(&name.schema), identifier(role));
        let failure = Failure::environment(format!("role {role} may not read table {name}")).hint(&sql);
        found
            .push(Finding::refused(Side::Source, name.to_string(), failure).mended_by(schema).mended_by(sql));
    }
    if detail.row_security {
        let sql = format!("alter role {} bypassrls", identifier(role));
        let message = format!(
            "row security of table {name} applies to role {role}: rows would be missing from the copy"
        );
        let failure = Failure::environment(message).hint(&sql);
        found.push(Finding::refused(Side::Source, name.to_string(), failure).mended_by(sql));
    }
    found
}

fn table_notes(table: &Table, name: &TableName, detail: &TableDetail) -> Vec<Finding> {
    let mut found = Vec::new();
    if detail.has_deferrable_key {
        let failure = Failure::config(format!(
            "the primary key of table {name} is deferrable: it cannot identify a row"
        ))
        .hint("alter table … drop constraint …, add primary key (…) without deferrable");
        found.push(Finding::warning(Side::Source, name.to_string(), failure));
    }
    if let Some(parent) = &detail.child_of {
        let message = match detail.is_partition {
            true => format!(
                "table {name} is a partition of {parent}: attaching, detaching and truncating it by the parent are not followed"
            ),
            false => format!("table {name} inherits from {parent}: only its own rows are followed"),
        };
        let failure = Failure::config(message).hint("load the table anew after such a change");
        found.push(Finding::warning(Side::Source, name.to_string(), failure));
    }
    if table.identity != Identity::Full && !detail.large_columns.is_empty() {
        let message = format!(
            "an UPDATE that leaves a large value alone does not send it again (columns {}); with replica identity FULL \
             it does",
            detail.large_columns.join(", ")
        );
        found.push(Finding::note(Side::Source, name.to_string(), message));
    }
    found
}

fn probe_table(facts: &TableFacts) -> Vec<Finding> {
    let name = &facts.wanted.name;
    let is_ours = facts.detail.as_ref().is_some_and(|detail| detail.comment.starts_with(MARK));
    let is_absent = facts.detail.is_none() && facts.inspected.is_missing;
    match (is_absent, is_ours) {
        (true, _) => vec![Finding::note(
            Side::Source,
            name.to_string(),
            format!("table {name} will be made by a probe, and removed at its end"),
        )],
        (_, true) => vec![Finding::note(
            Side::Source,
            name.to_string(),
            format!("table {name} was made by cdcprobe: a probe makes it anew"),
        )],
        _ => vec![Finding::refused(Side::Source, name.to_string(), foreign(name))],
    }
}

fn grants(target: &TargetFacts) -> Vec<Finding> {
    let user = &target.user;
    let missing = target.grants.iter().filter(|grant| !grant.granted);
    let finding = |right: &String| {
        let sql = format!("grant {right} to {}", quote::identifier(user));
        let failure = Failure::environment(format!("ClickHouse's user {user} lacks the right {right}"));
        let views = if right.contains(" VIEW ") { ", or do without views: target.views = false" } else { "" };
        let failure = failure.hint(format!("{sql}{views}"));
        Finding::refused(Side::Target, user, failure).mended_by(sql)
    };
    missing.map(|grant| finding(&grant.right)).collect()
}

/// Whether each table's rows, and its view, can go where they should.
fn places(plan: &Plan, source: &SourceFacts, target: Option<&TargetFacts>) -> Vec<Finding> {
    let tables: Vec<Table> = existing(source)
        .filter(|table| !table.wanted.by_probe)
        .filter_map(|table| Some(table.inspected.table.as_ref()?.table.clone()))
        .collect();
    // Of a target that cannot be read, the types and names are judged still.
    let nothing = TargetFacts::default();
    let target = target.unwrap_or(&nothing);
    let collision = |failure| Finding::refused(Side::File, "source.tables", failure);
    let mut found: Vec<Finding> = ddl::collisions(&tables, target.views).into_iter().map(collision).collect();
    for table in &tables {
        let name = TableName::new(&table.schema, &table.name);
        let place = target.places.iter().find(|(known, _)| *known == name);
        let place = place.map_or_else(Place::default, |(_, place)| place.clone());
        for failure in ddl::failures(&target.database, table, &place, target.views) {
            let side = if failure.kind == Kind::Config { Side::Source } else { Side::Target };
            found.push(Finding::refused(side, name.to_string(), failure));
        }
        let rows = place.table.as_ref().map_or(0, |existing| existing.rows);
        if rows > 0 && source.slot.is_none() && target.checkpoint.is_none() {
            let failure = crate::pipeline::occupied(&name.to_string(), &plan.slot);
            found.push(Finding::refused(Side::Target, name.to_string(), failure));
        }
    }
    found
}
