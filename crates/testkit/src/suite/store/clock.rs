//! Moves the store's clock, and makes leases and records expire.

use std::time::Duration;

use super::operation::SuiteOperation;
use crate::setup::{ClockStep, Setup};

pub(super) async fn forward(setup: &dyn Setup, by: Duration) {
    setup.step_clock(ClockStep::Forward(by)).await;
}

pub(super) async fn back(setup: &dyn Setup, by: Duration) {
    setup.step_clock(ClockStep::Back(by)).await;
}

/// Sweeps until nothing expired is left.
pub(super) async fn sweep_all(setup: &dyn Setup) {
    let inspect = setup.inspect();
    while inspect.sweep(100).await.expect("the sweep failed") > 0 {}
}

/// Makes the leases of all operations expire.
pub(super) async fn lapse_all(setup: &dyn Setup, operations: &[SuiteOperation]) {
    for operation in operations {
        setup.lapse(&operation.rk()).await;
    }
}

/// Makes the records of all operations expire.
pub(super) async fn expire_all(setup: &dyn Setup, operations: &[SuiteOperation]) {
    for operation in operations {
        setup.expire(&operation.rk()).await;
    }
}
