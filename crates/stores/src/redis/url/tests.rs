use super::*;

#[test]
fn the_place_has_no_credentials_and_names_the_database() {
    for (url, place) in [
        ("redis://u:secret@Redis.example", "redis://redis.example:6379/0"),
        ("rediss://redis.example:6380/2", "redis://redis.example:6380/2"),
        ("redis://[::1]/1", "redis://[::1]:6379/1"),
        ("unix:///run/redis.sock?user=u&pass=secret&db=3", "unix:///run/redis.sock?db=3"),
        ("unix:///run/redis.sock", "unix:///run/redis.sock?db=0"),
        ("redis+cluster://u:secret@B.example,a.example:7000", "redis+cluster://a.example:7000,b.example:6379"),
        ("rediss+cluster://a.example", "redis+cluster://a.example:6379"),
        ("redis+sentinel://u:secret@b,a/main/2", "redis+sentinel://a:26379,b:26379/main/2"),
        ("rediss+sentinel://a/main?min-replicas=unchecked", "redis+sentinel://a:26379/main/0"),
    ] {
        let shown = url.parse::<RedisUrl>().unwrap().place().to_string();
        assert_eq!(shown, place);
        assert_eq!(shown.parse::<RedisUrl>().unwrap().place().to_string(), place, "a place is a URL of itself");
    }
}

#[test]
fn the_error_for_a_malformed_url_says_what_to_write() {
    for (text, remedy) in [
        ("redis://:a#b@host", "%23"),
        ("redis://:a?b@host", "%3F"),
        ("redis://host#part", "%23"),
        ("redis://", "redis://HOST"),
        ("redis+cluster://", "redis+cluster://HOST"),
        ("redis+cluster://a,b/2", "no databases"),
        ("redis+cluster://a,b?ca=ca.pem", "write rediss"),
        ("redis://a,b", "only one host"),
        ("redis+sentinel://a,b", "redis+sentinel://HOST"),
        ("redis+sentinel://a,b/", "redis+sentinel://HOST"),
        ("redis+sentinel://a,b/main/two", "redis+sentinel://HOST"),
        ("redis+sentinel://a,b/main?min-replicas=1", "unchecked"),
        ("redis+sentinel://a,b/main?sentinel-user=me", "sentinel-password-file"),
        ("redis+sentinel://a,b,A:26379/main", "twice"),
        ("redis://a?wait=1", "wait=1:200"),
        ("redis://a?wait=one:200", "wait=1:200"),
        ("redis://a?wait=1:0", "wait=1:200"),
        ("redis://a?wait=0:200", "waits for nothing"),
        ("redis://a?aof=synced", "wait=N:MS"),
        ("redis://a?wait=1:200&aof=yes", "synced"),
    ] {
        let error = text.parse::<RedisUrl>().unwrap_err();
        assert!(error.to_string().contains(remedy), "{text}: {error}");
    }
    assert!("redis://:a%23b@host".parse::<RedisUrl>().is_ok());
}

#[test]
fn every_kind_of_url_says_when_a_write_counts() {
    for url in ["redis://a", "rediss+cluster://a,b", "redis+sentinel://a,b/main", "unix:///run/redis.sock"] {
        let confirmation = |parameters: &str| format!("{url}?{parameters}").parse::<RedisUrl>().unwrap().confirmation();
        assert_eq!(confirmation("connections=2"), None);
        let by_one = WriteConfirmation { replicas: 1, millis: 200, on_disk: false };
        assert_eq!(confirmation("wait=1:200"), Some(by_one));
        assert_eq!(confirmation("wait=1:200&aof=synced"), Some(WriteConfirmation { on_disk: true, ..by_one }));
        let by_none = WriteConfirmation { replicas: 0, on_disk: true, ..by_one };
        assert_eq!(confirmation("wait=0:200&aof=synced"), Some(by_none));
    }
}
