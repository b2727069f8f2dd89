//! Checks JSON against the schemas of the admin API: the part of JSON Schema that its description uses.

use serde_json::Value;

/// Checks an answer of the API against the schema that the description has for this path and method.
pub(crate) fn check_answer(document: &Value, method: &str, path: &str, status: u16, answer: &Value) {
    let operation = &document["paths"][path][method];
    assert!(operation.is_object(), "{method} {path} is not described");
    let response = if status == 200 { "200" } else { "default" };
    let schema = &operation["responses"][response]["content"]["application/json"]["schema"];
    assert!(schema.is_object(), "{method} {path} has no schema for {status}");
    if let Err(wrong) = check(document, schema, answer) {
        panic!("{method} {path} {status}: {wrong}\n{answer:#}");
    }
}

/// # Errors
/// What does not fit.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let known = ["$ref", "anyOf", "type", "enum", "properties", "required", "additionalProperties", "items"];
    for keyword in schema.as_object().unwrap().keys() {
        assert!(known.contains(&keyword.as_str()) || keyword == "description", "{keyword} is not checked");
    }
    if let Some(name) = schema["$ref"].as_str() {
        let target = document.pointer(name.strip_prefix('#').unwrap());
        return check(document, target.unwrap_or_else(|| panic!("{name} is missing")), value);
    }
    if let Some(choices) = schema["anyOf"].as_array()
        && !choices.iter().any(|choice| check(document, choice, value).is_ok())
    {
        return Err(format!("{value} fits none of {choices:?}"));
    }
    check_type(schema, value)?;
    if let Some(allowed) = schema["enum"].as_array()
        && !allowed.contains(value)
    {
        return Err(format!("{value} is none of {allowed:?}"));
    }
    if let (Some(items), Some(values)) = (schema.get("items"), value.as_array()) {
        values.iter().try_for_each(|item| check(document, items, item))?;
    }
    check_members(document, schema, value)
}

fn check_type(schema: &Value, value: &Value) -> Result<(), String> {
    let of = |kinds: &Value| -> Vec<String> {
        let many = kinds.as_array().into_iter().flatten();
        many.chain([kinds]).filter_map(Value::as_str).map(str::to_owned).collect()
    };
    let allowed = of(&schema["type"]);
    if allowed.is_empty() {
        return Ok(());
    }
    let own = match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_i64() || number.is_u64() => "integer",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    if allowed.iter().any(|name| name == own) { Ok(()) } else { Err(format!("{value} is {own}, not {allowed:?}")) }
}

fn check_members(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Some(members) = value.as_object() else { return Ok(()) };
    for name in schema["required"].as_array().into_iter().flatten() {
        if !members.contains_key(name.as_str().unwrap()) {
            return Err(format!("{name} is missing"));
        }
    }
    for (name, member) in members {
        match schema["properties"].get(name) {
            Some(schema) => check(document, schema, member).map_err(|wrong| format!("{name}: {wrong}"))?,
            None if schema["additionalProperties"] == false => return Err(format!("{name} is not described")),
            None => {}
        }
    }
    Ok(())
}

#[test]
fn what_does_not_fit_a_schema_is_found() {
    use serde_json::json;

    let document = json!({ "s": { "type": "object", "properties": { "a": { "type": ["integer", "null"] } },
        "required": ["a"], "additionalProperties": false } });
    let schema = json!({ "type": "array", "items": { "$ref": "#/s" } });
    assert_eq!(check(&document, &schema, &json!([{ "a": 1 }, { "a": null }])), Ok(()));
    for wrong in [json!({}), json!([{}]), json!([{ "a": "1" }]), json!([{ "a": 1, "b": 2 }])] {
        assert!(check(&document, &schema, &wrong).is_err(), "{wrong}");
    }
}
