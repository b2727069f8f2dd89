use std::fs;
use std::os::unix::fs::PermissionsExt;

use super::*;

const CLUSTER: UrlShape = UrlShape {
    schemes: &["nats"],
    port: 4222,
    what: "a source",
    example: "nats://host:4222/stream?durable=name",
    hosts: HostCount::Several,
    login: Login::NamedUserOrToken,
    needs_path: true,
    parameters: &["durable", "wait", "tls", "ca", "cert", "key", "password-file"],
};

const SERVER: UrlShape = UrlShape {
    schemes: &["redis", "unix"],
    port: 6379,
    what: "a server",
    example: "redis://HOST",
    hosts: HostCount::OneOrSocket,
    login: Login::AnyUser,
    needs_path: false,
    parameters: &["user", "pass", "password-file"],
};

#[test]
fn a_url_has_several_hosts_and_a_default_port() {
    let url = CLUSTER.parse("nats://a,b:77,[::1],[::1]:88/orders?durable=d").unwrap();
    assert_eq!(url.addresses(), "a:4222,b:77,[::1]:4222,[::1]:88");
    assert_eq!(url.hosts()[2], Host { name: "::1".into(), port: 4222 });
    assert_eq!((url.path(), url.parameter("durable")), ("orders", Some("d")));
    assert!(!url.uses_tls().unwrap());
}

#[test]
fn a_socket_has_no_host() {
    let url = SERVER.parse("unix:///run/redis.sock?user=u&pass=secret").unwrap();
    assert!(url.hosts().is_empty());
    assert_eq!((url.scheme(), url.path()), ("unix", "run/redis.sock"));
    assert_eq!(url.to_string(), "unix:///run/redis.sock?pass=***&user=u");
    assert!(SERVER.parse("redis://a,b").unwrap_err().to_string().contains("only one host"));
    assert!(SERVER.parse("redis://me:secret@/0").is_err());
}

#[test]
fn a_password_and_a_lone_token_are_never_shown() {
    for text in ["nats://me:s%40cret@a/x", "nats://s%40cret@a/x", "redis://:s%40cret@a"] {
        let url = CLUSTER.parse(text).or_else(|_| SERVER.parse(text)).unwrap();
        assert!(!format!("{url} {url:?} {:?}", url.credentials().unwrap()).contains("cret"), "{url}");
        let credentials = url.credentials().unwrap();
        assert_eq!(credentials.password.or(credentials.user).as_deref(), Some("s@cret"));
    }
    for text in [
        "nats://me:s/cret@a/x",
        "nats://me:1/cret@a/x",
        "nats://me:s?cret@a/x",
        "nats://me:1?cret=x@a/x",
        "nats://me:s#cret@a/x",
        "nats://me:1?cret:4222/x",
        "nats://me:1/x?cret",
    ] {
        let error = CLUSTER.parse(text).unwrap_err().to_string();
        assert!(!error.contains("cret"), "{text}: {error}");
    }
    for text in ["redis://me:1?cret", "redis://me:1?cret:6379/0", "redis://:s#cret@a", "redis://:s?cret@a"] {
        let error = SERVER.parse(text).unwrap_err().to_string();
        assert!(!error.contains("cret") && error.contains("%23"), "{text}: {error}");
    }
}

#[test]
fn a_user_without_a_password_is_shown_where_it_is_no_token() {
    assert_eq!(SERVER.parse("redis://a%40b@h/1").unwrap().to_string(), "redis://a%40b@h:6379/1");
    let with_file = CLUSTER.parse("nats://me@h/x?password-file=f").unwrap();
    assert_eq!(with_file.to_string(), "nats://me@h:4222/x?password-file=f");
}

#[test]
fn what_does_not_have_the_shape_is_refused() {
    for text in [
        "kafka://a/x",
        "nats:a/x",
        "nats://a",
        "nats:///x",
        "nats://a:b/x",
        "nats://a:1:2/x",
        "nats://[::1/x",
        "nats://[a]/x",
        "nats://a b/x",
        "nats://a,/x",
        "nats://a/x?group=g",
        "nats://a/x?durable=",
        "nats://a/x?durable=d&durable=d",
        "nats://a/x?cert=c",
        "nats://me:s#cret@a/x",
        "nats://a/x?password-file=f",
        "nats://:secret@a/x",
        "nats://me:secret@a/x?password-file=f",
        "nats://a/%ff",
    ] {
        assert_eq!(CLUSTER.parse(text).err().map(|error| error.kind()), Some(ErrorKind::Invalid), "{text}");
    }
    assert!(CLUSTER.parse("nats://a/x?ca=c&tls=no").unwrap().uses_tls().is_err());
}

#[test]
fn a_number_is_in_its_range() {
    let url = |value: &str| CLUSTER.parse(&format!("nats://a/x?wait={value}")).unwrap();
    assert_eq!(url("5").seconds("wait", 1..=300).unwrap(), Some(Duration::from_secs(5)));
    assert_eq!(url("5").number("other", 1..=300).unwrap(), None);
    for wrong in ["0", "301", "-1", "1s", "x"] {
        let error = url(wrong).seconds("wait", 1..=300).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("`wait` is a number of seconds from 1 to 300"), "{error}");
    }
}

#[test]
fn a_password_file_that_everybody_can_read_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("password");
    fs::write(&path, "secret\n").unwrap();
    let url = CLUSTER.parse(&format!("nats://me@a/x?password-file={}", path.display())).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let error = url.credentials().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unusable);
    assert!(error.to_string().contains(&format!("{}, which is named in the URL", path.display())), "{error}");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(url.credentials().unwrap().password.as_deref(), Some("secret"));
}
