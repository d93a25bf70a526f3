//! stub
use crate::history::Record;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Debug {
    pub id: String,
}

pub fn report(record: &Record) -> Debug {
    Debug {
        id: record.id.to_string(),
    }
}
