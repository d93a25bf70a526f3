//! Descriptions of the types that write themselves to JSON by hand.

use std::borrow::Cow;

use utoipa::openapi::schema::{
    AdditionalProperties, Array, Object, ObjectBuilder, OneOfBuilder, Schema, Type,
};
use utoipa::openapi::{Ref, RefOr};
use utoipa::{PartialSchema, ToSchema};

use crate::{Amount, Content, Network, Publish, RunId, SandboxId, Volume};

fn text(description: &str) -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some(description))
}

fn rules() -> Array {
    Array::new(
        OneOfBuilder::new()
            .item(text(
                "example.org, *.example.org, example.org:443 or 10.0.0.0/8",
            ))
            .item(
                ObjectBuilder::new()
                    .description(Some("A host with headers that are added on the way out"))
                    .property("host", text("As above"))
                    .required("host")
                    .property(
                        "headers",
                        ObjectBuilder::new().additional_properties(Some(text("Never seen inside"))),
                    )
                    .property(
                        "env",
                        text("A variable that is set to a placeholder inside"),
                    )
                    .additional_properties(Some(AdditionalProperties::FreeForm(false))),
            ),
    )
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
    Publish,
    "Publish",
    text("ADDRESS:PORT:INNER, like 127.0.0.1:8080:8000; port 0 is any that is free").into()
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
        .item(rules())
        .item(
            ObjectBuilder::new()
                .description(Some("The same with caps for the sandbox"))
                .property(
                    "allow",
                    OneOfBuilder::new()
                        .item(text("Nobody or everybody").enum_values(Some(["none", "all"])))
                        .item(rules())
                )
                .required("allow")
                .property("connections", Ref::from_schema_name("Amount"))
                .property("bytes", Ref::from_schema_name("Amount"))
                .property("bytes_per_second", Ref::from_schema_name("Amount"))
                .property(
                    "intercept",
                    ObjectBuilder::new()
                        .schema_type(Type::Boolean)
                        .description(Some(
                            "Trust our certificate inside, so that headers reach HTTPS too"
                        ))
                )
                .additional_properties(Some(AdditionalProperties::FreeForm(false)))
        )
        .into()
);
