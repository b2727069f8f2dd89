use super::*;

fn rules(text: &str) -> Vec<LifecycleRule> {
    LifecycleRule::read_all(&format!("<LifecycleConfiguration>{text}</LifecycleConfiguration>"))
}

#[test]
fn a_rule_has_its_prefix_and_its_days() {
    let text = "<Rule><ID>x</ID><Status>Enabled</Status><Filter><Prefix>a/</Prefix></Filter><Expiration><Days>32</Days>\
                </Expiration></Rule>\
                <Rule><Prefix>b/</Prefix><Status>Disabled</Status><Expiration><Days>1</Days></Expiration></Rule>\
                <Rule><Status>Enabled</Status><Filter><And><Prefix>c/</Prefix><Tag><Key>k</Key><Value>v</Value></Tag>\
                </And></Filter><NoncurrentVersionExpiration><NoncurrentDays>3</NoncurrentDays>\
                </NoncurrentVersionExpiration></Rule>\
                <Rule><Status>Enabled</Status><Filter/><AbortIncompleteMultipartUpload>\
                <DaysAfterInitiation>7</DaysAfterInitiation></AbortIncompleteMultipartUpload></Rule>";
    let rule = |prefix: &str, is_partial, days, noncurrent_days| LifecycleRule {
        prefix: prefix.to_owned(),
        is_partial,
        days,
        noncurrent_days,
    };
    assert_eq!(rules(text), [rule("a/", false, Some(32), None), rule("c/", true, None, Some(3))]);
}

#[test]
fn a_rule_of_google_has_its_conditions() {
    let delete = |condition: &str| format!("<Rule><Action><Delete/></Action><Condition>{condition}</Condition></Rule>");
    let text = [
        delete("<Age>32</Age><MatchesPrefix>a/</MatchesPrefix><MatchesPrefix>b/</MatchesPrefix>"),
        delete("<Age>7</Age>"),
        delete("<Age>8</Age><MatchesStorageClass>NEARLINE</MatchesStorageClass>"),
        delete("<IsLive>false</IsLive><Age>3</Age>"),
        delete("<NumberOfNewerVersions>3</NumberOfNewerVersions>"),
        "<Rule><Action><SetStorageClass>NEARLINE</SetStorageClass></Action><Condition><Age>1</Age></Condition></Rule>"
            .to_owned(),
    ];
    let rule = |prefix: &str, is_partial, days, noncurrent_days| LifecycleRule {
        prefix: prefix.to_owned(),
        is_partial,
        days,
        noncurrent_days,
    };
    let expected = [
        rule("a/", false, Some(32), None),
        rule("b/", false, Some(32), None),
        rule("", false, Some(7), None),
        rule("", true, Some(8), None),
        rule("", false, None, Some(3)),
    ];
    assert_eq!(rules(&text.concat()), expected);
}

#[test]
fn a_value_in_a_query_is_encoded() {
    assert_eq!(encoded("a/b c+d=~"), "a%2Fb%20c%2Bd%3D~");
}
