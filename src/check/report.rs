//! The check's result: what will happen, table by table, and the findings; as JSON, as text, and as SQL. Pure.

use std::fmt::Write;

use serde::Serialize;

use super::{
    facts::{SourceFacts, TableFacts, TargetFacts, Wanted},
    finding::{Finding, Severity, Side},
    gravest,
    judge::Plan,
};
use crate::{
    change::{Identity, Table, TableColumn},
    config::{Pipeline, TableName},
    pipeline::{
        checkpoint::{Resume, resume},
        policies,
    },
    sink::clickhouse::{
        ddl::{self, Place},
        quote::{table_name, view_name},
        types::{ColumnType, IS_NULL_SUFFIX, column_type},
    },
    units::ByteSize,
};

/// The whole document of `check --json`; docs/check.md describes it. `format` grows when a field changes its meaning.
#[derive(Debug, Serialize)]
pub struct CheckReport {
    pub format: u32,
    pub pipeline: String,
    pub source: Option<SourceSummary>,
    pub target: Option<TargetSummary>,
    /// What a start would do first, in a sentence; `None` when it cannot start or the servers were not read.
    pub start: Option<String>,
    pub tables: Vec<TablePlan>,
    pub findings: Vec<Finding>,
    pub errors: usize,
    pub warnings: usize,
    pub exit_code: u8,
    pub fix: Fix,
}

#[derive(Debug, Serialize)]
pub struct SourceSummary {
    pub version: String,
    pub database: String,
    pub role: String,
    pub wal_level: String,
    pub free_slots: i64,
    pub free_walsenders: i64,
}

#[derive(Debug, Serialize)]
pub struct TargetSummary {
    pub version: String,
    pub database: String,
    pub user: String,
}

#[derive(Debug, Serialize)]
pub struct TablePlan {
    pub source: String,
    /// Name in the target's database.
    pub target: String,
    /// `made by a probe`, `missing`, `will be created`, `fits`, `does not fit`, or `unknown` without a target.
    pub state: &'static str,
    pub view: Option<String>,
    pub key: Vec<String>,
    /// `primary key`, `identity index`, or `none`.
    pub key_source: &'static str,
    pub key_index: Option<String>,
    pub replica_identity: Option<&'static str>,
    pub estimated_rows: Option<u64>,
    pub bytes: Option<u64>,
    pub columns: Vec<ColumnPlan>,
}

#[derive(Debug, Serialize)]
pub struct ColumnPlan {
    pub name: String,
    pub source_type: String,
    pub target_type: String,
    pub nullable: bool,
    pub note: Option<String>,
}

/// Statements in the order in which they should run, each without its semicolon.
#[derive(Debug, Default, Serialize)]
pub struct Fix {
    pub source: Vec<String>,
    pub target: Vec<String>,
}

pub fn report(
    pipeline: &Pipeline,
    plan: &Plan,
    wanted: &[Wanted],
    source: Option<&SourceFacts>,
    target: Option<&TargetFacts>,
    findings: Vec<Finding>,
) -> CheckReport {
    let count = |severity| findings.iter().filter(|finding| finding.severity == severity).count();
    let (errors, warnings) = (count(Severity::Error), count(Severity::Warning));
    CheckReport {
        format: 1,
        pipeline: pipeline.name.clone(),
        source: source.map(source_summary),
        target: target.map(target_summary),
        start: source.and_then(|source| start(plan, source, target?)),
        tables: wanted.iter().map(|wanted| table_plan(wanted, source, target)).collect(),
        errors,
        warnings,
        exit_code: gravest(&findings).map_or(0, |kind| kind.code()),
        fix: Fix { source: fixes(&findings, Side::Source), target: fixes(&findings, Side::Target) },
        findings,
    }
}

fn source_summary(source: &SourceFacts) -> SourceSummary {
    SourceSummary {
        version: source.server.version.clone(),
        database: source.database.clone(),
        role: source.server.role.clone(),
        wal_level: source.capacity.wal_level.clone(),
        free_slots: source.capacity.free_slots,
        free_walsenders: source.capacity.free_walsenders,
    }
}

fn target_summary(target: &TargetFacts) -> TargetSummary {
    TargetSummary {
        version: target.version.clone(),
        database: target.database.clone(),
        user: target.user.clone(),
    }
}

fn start(plan: &Plan, source: &SourceFacts, target: &TargetFacts) -> Option<String> {
    if plan.followed.is_empty() {
        return None;
    }
    let system = *source.system.as_ref().ok()?;
    let (checkpoint, slot) = (target.checkpoint.as_ref(), source.slot.as_ref());
    let (name, publication) = (&plan.slot, &plan.publication);
    let made = if source.publication.is_some() { "" } else { ", publication made" };
    Some(match resume(name, &source.database, checkpoint, slot, system).ok()? {
        Resume::Fresh => {
            format!("all tables are copied, then followed by slot {name}, publication {publication}{made}")
        }
        Resume::Again { .. } => {
            format!(
                "an unfinished copy is begun anew, then followed by slot {name}, publication {publication}{made}"
            )
        }
        Resume::Stream { from, .. } => format!("slot {name} goes on from {from}; nothing is copied"),
    })
}

fn fixes(findings: &[Finding], side: Side) -> Vec<String> {
    let mut all = Vec::new();
    for statement in findings.iter().filter(|finding| finding.side == side).flat_map(|finding| &finding.fix) {
        if !all.contains(statement) {
            all.push(statement.clone());
        }
    }
    all
}

fn table_plan(wanted: &Wanted, source: Option<&SourceFacts>, target: Option<&TargetFacts>) -> TablePlan {
    let facts = source.and_then(|source| source.tables.iter().find(|facts| facts.wanted == *wanted));
    let name = &wanted.name;
    let mut plan = TablePlan {
        source: name.to_string(),
        target: table_name(&name.schema, &name.name),
        state: if wanted.by_probe { "made by a probe" } else { "unknown" },
        view: None,
        key: Vec::new(),
        key_source: "none",
        key_index: None,
        replica_identity: None,
        estimated_rows: None,
        bytes: None,
        columns: Vec::new(),
    };
    if let Some(facts) = facts.filter(|_| !wanted.by_probe) {
        describe(&mut plan, facts, target);
    }
    plan
}

fn describe(plan: &mut TablePlan, facts: &TableFacts, target: Option<&TargetFacts>) {
    let Some(sized) = &facts.inspected.table else {
        plan.state = if facts.inspected.is_missing { "missing" } else { "cannot be followed" };
        return;
    };
    let table = &sized.table;
    plan.key = table.key().iter().map(|column| column.name.clone()).collect();
    plan.key_source = match (plan.key.is_empty(), table.identity) {
        (true, _) => "none",
        (false, Identity::Index) => "identity index",
        (false, _) => "primary key",
    };
    plan.key_index = facts.detail.as_ref().and_then(|detail| detail.key_index.clone());
    plan.replica_identity = Some(identity_name(table.identity));
    plan.estimated_rows = Some(sized.rows as u64);
    plan.bytes = facts.detail.as_ref().map(|detail| detail.bytes);
    plan.columns = table.columns.iter().map(column_plan).collect();
    let Some(target) = target else { return };
    let place = target.places.iter().find(|(name, _)| *name == facts.wanted.name).map(|(_, place)| place);
    let Some(place) = place else { return };
    plan.state = state(target, table, place);
    plan.view = place.takes_view(target.views).then(|| view_name(&table.schema, &table.name));
}

fn state(target: &TargetFacts, table: &Table, place: &Place) -> &'static str {
    match (&place.table, ddl::failures(&target.database, table, place, false).is_empty()) {
        (None, true) => "will be created",
        (None, false) => "cannot be created",
        (Some(_), true) => "fits",
        (Some(_), false) => "does not fit",
    }
}

fn identity_name(identity: Identity) -> &'static str {
    match identity {
        Identity::Default => "default",
        Identity::Nothing => "nothing",
        Identity::Full => "full",
        Identity::Index => "index",
    }
}

fn column_plan(column: &TableColumn) -> ColumnPlan {
    let target = column_type(column);
    let mut notes = Vec::new();
    notes.extend(column.key_position.map(|position| format!("key {}", position + 1)));
    if matches!(target, ColumnType::Array { nullable: true, .. }) {
        notes.push(format!("{}{IS_NULL_SUFFIX} tells NULL from []", column.name));
    }
    notes.extend(policies::consequence(column));
    ColumnPlan {
        name: column.name.clone(),
        source_type: column.type_name.clone(),
        target_type: target.to_string(),
        nullable: !column.not_null,
        note: (!notes.is_empty()).then(|| notes.join("; ")),
    }
}

/// For people: the plan first, then what hinders it, gravest first.
pub fn text(report: &CheckReport) -> String {
    let mut out = String::new();
    let mut line = |text: std::fmt::Arguments<'_>| writeln!(out, "{text}").expect("a String takes it");
    if let Some(source) = &report.source {
        let SourceSummary { version, database, role, wal_level, free_slots, free_walsenders } = source;
        line(format_args!(
            "source  PostgreSQL {version}, database {database}, role {role}, wal_level {wal_level}, {free_slots} slots \
             and {free_walsenders} walsenders free"
        ));
    }
    if let Some(TargetSummary { version, database, user }) = &report.target {
        line(format_args!("target  ClickHouse {version}, database {database}, user {user}"));
    }
    if let Some(start) = &report.start {
        line(format_args!("start   {start}"));
    }
    for table in &report.tables {
        line(format_args!("{}", table_text(table)));
    }
    let mut findings: Vec<&Finding> = report.findings.iter().collect();
    findings.sort_by_key(|finding| finding.severity);
    if !findings.is_empty() {
        line(format_args!(""));
    }
    for finding in findings {
        line(format_args!("{}", finding_text(finding)));
    }
    line(format_args!("\n{} errors, {} warnings", report.errors, report.warnings));
    out
}

fn table_text(table: &TablePlan) -> String {
    let mut out = format!("\n{} -> {}: {}", table.source, table.target, table.state);
    if let Some(view) = &table.view {
        out.push_str(&format!(", view {view}"));
    }
    let Some(identity) = table.replica_identity else { return out };
    let index = table.key_index.as_ref().map(|index| format!(" {index}")).unwrap_or_default();
    let key = match table.key.is_empty() {
        true => "no key".to_owned(),
        false => format!("key ({}) by {}{index}", table.key.join(", "), table.key_source),
    };
    let (rows, bytes) = (table.estimated_rows.unwrap_or(0), ByteSize(table.bytes.unwrap_or(0)));
    out.push_str(&format!("\n  {key}; replica identity {identity}; about {rows} rows, {bytes}"));
    let cells: Vec<[String; 4]> = table.columns.iter().map(cells).collect();
    let width = |at: usize| cells.iter().map(|row| row[at].chars().count()).max().unwrap_or(0);
    let widths = [width(0), width(1), width(2)];
    for [name, source, target, note] in &cells {
        let [a, b, c] = widths;
        let row = format!("  {name:a$}  {source:b$}  {target:c$}  {note}");
        out.push_str(&format!("\n{}", row.trim_end()));
    }
    out
}

fn cells(column: &ColumnPlan) -> [String; 4] {
    let null = if column.nullable { "" } else { " not null" };
    let source = format!("{}{null}", column.source_type);
    [column.name.clone(), source, column.target_type.clone(), column.note.clone().unwrap_or_default()]
}

fn finding_text(finding: &Finding) -> String {
    let severity = match finding.severity {
        Severity::Error => format!("error ({})", finding.kind),
        Severity::Warning => "warning".to_owned(),
        Severity::Note => "note".to_owned(),
    };
    let hint = finding.hint.as_ref().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
    format!("{severity} {}: {}{hint}", finding.subject, finding.message)
}

/// `check --fix`: a script for each server. What takes a decision stands in it as a comment.
pub fn script(report: &CheckReport) -> String {
    let mut out = String::new();
    for (side, title, statements) in [
        (Side::Source, "PostgreSQL (psql, as a superuser or the owner)", &report.fix.source),
        (Side::Target, "ClickHouse (clickhouse client, as an administrator)", &report.fix.target),
    ] {
        if statements.is_empty() {
            continue;
        }
        out.push_str(&format!("-- {title}; side: {side:?}\n"));
        for statement in statements {
            out.push_str(&format!("{statement};\n"));
            if statement.starts_with("alter system") {
                out.push_str("-- then restart PostgreSQL\n");
            }
        }
    }
    let undecided =
        report.findings.iter().filter(|finding| finding.fix.is_empty() && finding.severity != Severity::Note);
    for finding in undecided {
        out.push_str(&comment(&format!("{}: {}", finding.subject, finding.message)));
        out.push_str(&finding.hint.as_ref().map(|hint| comment(&format!("  {hint}"))).unwrap_or_default());
    }
    out
}

/// Whatever a name holds, it stays behind the dashes.
fn comment(text: &str) -> String {
    text.lines().map(|line| format!("-- {line}\n")).collect()
}

/// The table's name as the file has it, for tests and callers that look one up.
impl CheckReport {
    pub fn table(&self, name: &TableName) -> Option<&TablePlan> {
        self.tables.iter().find(|table| table.source == name.to_string())
    }
}
