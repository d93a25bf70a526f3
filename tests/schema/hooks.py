"""What schemathesis cannot know by itself."""

import schemathesis


@schemathesis.serializer("application/x-tar")
def tar(ctx, value):
    """Any bytes: most are no archive, and have to be refused as such."""
    return value if isinstance(value, bytes) else str(value).encode("utf-8", "surrogateescape")


@schemathesis.hook
def map_body(ctx, body):
    """A sandbox that is to be asked more may be given more time, not less."""
    if isinstance(body, dict):
        for name in ("idle_timeout_ms", "lifetime_ms"):
            if type(body.get(name)) is int and 0 < body[name] < 3_600_000:
                body[name] += 3_600_000
    return body


@schemathesis.hook
def before_call(ctx, case, kwargs):
    """No container engine is there, and that it says so, with 503, is right."""
    if isinstance(case.body, dict) and case.body.get("backend") == "docker":
        case.body["backend"] = "native"
