//! Descriptions of the types that write themselves to JSON by hand.

use std::borrow::Cow;

use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{
    AdditionalProperties, Array, Object, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::{PartialSchema, ToSchema};

use crate::{Amount, Content, Network, RunId, SandboxId, Volume};

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

macro_rules! described {
    ($type:ty, $name:literal, $schema:expr) => {
        impl PartialSchema for $type {
            fn schema() -> RefOr<Schema> {
                $schema
            }
        }

        impl ToSchema for $type {
            fn name() -> Cow<'static, str> {
                Cow::Borrowed($name)
            }
        }
    };
}

fn id(prefix: &str) -> RefOr<Schema> {
    text("128 random bits")
        .pattern(Some(format!("^{prefix}_[a-h][a-z2-7]{{25}}$")))
        .into()
}

described!(RunId, "RunId", id("run"));
described!(SandboxId, "SandboxId", id("sbx"));
described!(
    Volume,
    "Volume",
    text("SRC:DEST, read-only, or SRC:DEST:rw").into()
);
described!(
    Amount,
    "Amount",
    OneOfBuilder::new()
        .description(Some(
            "A number in the unit of the field's name, or text with a unit, like 512m or 30s"
        ))
        .item(Object::with_type(Type::Number))
        .item(Object::with_type(Type::String))
        .into()
);
described!(
    Content,
    "Content",
    OneOfBuilder::new()
        .item(text("Text"))
        .item(
            ObjectBuilder::new()
                .description(Some("Any bytes"))
                .property("base64", text("The bytes in base64"))
                .required("base64")
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        )
        .into()
);
described!(
    Network,
    "Network",
    OneOfBuilder::new()
        .description(Some("Which hosts may be reached"))
        .item(text("Nobody or everybody").enum_values(Some(["none", "all"])))
        .item(Array::new(text(
            "example.org, *.example.org or example.org:443"
        )))
        .into()
);
