//! Totals and percentiles of runs.

use std::collections::BTreeMap;

use rusqlite::{Connection, params_from_iter};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::store::unsigned;
use super::{Query, Scope};

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Stats {
    pub runs: u64,
    pub by_status: BTreeMap<String, u64>,
    pub by_language: BTreeMap<String, u64>,
    /// CPU time of all of them.
    pub cpu_ms: f64,
    /// Time until there was room.
    pub queue_ms: Spread,
    /// From the request to the first instruction of the code.
    pub start_ms: Spread,
    pub wall_ms: Spread,
}

/// Percentiles; absent where there was nothing to measure.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Spread {
    pub p50: Option<f64>,
    pub p90: Option<f64>,
    pub p99: Option<f64>,
    pub max: Option<f64>,
}

pub fn stats(connection: &Connection, scope: &Scope, query: &Query) -> rusqlite::Result<Stats> {
    let (condition, values) = query.condition(scope);
    let counts = |column: &str| -> rusqlite::Result<BTreeMap<String, u64>> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {column}, count(*) FROM runs WHERE {condition} GROUP BY 1"
        ))?;
        let rows = statement.query_map(params_from_iter(&values), |row| {
            Ok((row.get(0)?, unsigned(row.get(1)?)))
        })?;
        rows.collect()
    };
    let spread = |column: &str| -> rusqlite::Result<Spread> {
        let mut statement = connection.prepare_cached(&format!(
            "SELECT {column} FROM runs WHERE {condition} AND {column} IS NOT NULL ORDER BY 1"
        ))?;
        let rows = statement.query_map(params_from_iter(&values), |row| row.get(0))?;
        Ok(percentiles(&rows.collect::<rusqlite::Result<Vec<f64>>>()?))
    };
    let by_status = counts("status")?;
    let cpu_ms = connection.query_row(
        &format!("SELECT total(cpu_ms) FROM runs WHERE {condition}"),
        params_from_iter(&values),
        |row| row.get(0),
    )?;
    Ok(Stats {
        runs: by_status.values().sum(),
        by_language: counts("language")?,
        by_status,
        cpu_ms,
        queue_ms: spread("queue_ms")?,
        start_ms: spread("start_ms")?,
        wall_ms: spread("wall_ms")?,
    })
}

/// Of sorted values: the smallest that so many percent do not exceed.
fn percentiles(sorted: &[f64]) -> Spread {
    let at = |percent: usize| {
        let index = (sorted.len() * percent).div_ceil(100).max(1) - 1;
        sorted.get(index).copied()
    };
    Spread {
        p50: at(50),
        p90: at(90),
        p99: at(99),
        max: sorted.last().copied(),
    }
}

#[cfg(test)]
mod tests {
    use super::percentiles;

    #[test]
    fn percentiles_are_values_that_occurred() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        let spread = percentiles(&values);
        assert_eq!(
            [spread.p50, spread.p90, spread.p99, spread.max],
            [50.0, 90.0, 99.0, 100.0].map(Some)
        );
        assert_eq!(percentiles(&[7.0]).p99, Some(7.0));
        assert_eq!(percentiles(&[]).p50, None);
    }
}
