//! Converts core errors to the exceptions that `tierlog.errors` defines in Python.

use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};
use tierlog_core::error::{Error, ErrorKind};

static CORRUPT_DATA: PyOnceLock<Py<PyType>> = PyOnceLock::new();
static CLOSED: PyOnceLock<Py<PyType>> = PyOnceLock::new();

/// Returns the exception for the use of an object that is closed.
pub fn closed(py: Python<'_>, text: &'static str) -> PyErr {
    CLOSED
        .import(py, "tierlog.errors", "ClosedError")
        .map_or_else(|failure| failure, |class| PyErr::from_type(class.clone(), text))
}

/// Converts a core error; `path` names the file, if any.
pub fn to_python(py: Python<'_>, error: Error, path: Option<&str>) -> PyErr {
    match error.kind {
        ErrorKind::Io => os_error(py, &error, path),
        ErrorKind::InvalidArgument => {
            let place = path.map_or_else(|| format!("row {}", error.position), str::to_owned);
            PyValueError::new_err(format!(
                "{place}: expected {}, found {}",
                error.expected, error.found
            ))
        }
        ErrorKind::Truncated
        | ErrorKind::BadCrc
        | ErrorKind::BadLength
        | ErrorKind::UnknownMagic
        | ErrorKind::BadHeader
        | ErrorKind::BadRecord
        | ErrorKind::OffsetOrder
        | ErrorKind::BadCompression
        | ErrorKind::TooLarge => corrupt_data(py, &error, path).unwrap_or_else(|failure| failure),
    }
}

fn corrupt_data(py: Python<'_>, error: &Error, path: Option<&str>) -> PyResult<PyErr> {
    let class = CORRUPT_DATA.import(py, "tierlog.errors", "CorruptDataError")?;
    let fields = PyDict::new(py);
    fields.set_item("reason", error.kind.name())?;
    fields.set_item("path", path)?;
    fields.set_item("position", error.position)?;
    fields.set_item("expected", &error.expected)?;
    fields.set_item("found", &error.found)?;
    Ok(PyErr::from_value(class.call((), Some(&fields))?))
}

/// Returns `OSError(errno, text, path)`, so that Python selects FileNotFoundError and other
/// subclasses itself.
fn os_error(py: Python<'_>, error: &Error, path: Option<&str>) -> PyErr {
    let code = error.io.as_ref().and_then(std::io::Error::raw_os_error);
    match (code, path) {
        (Some(code), path) => {
            let text = std::io::Error::from_raw_os_error(code).to_string();
            let text = text.split(" (os error").next().unwrap_or_default().to_owned();
            let path = path.map(str::to_owned).into_pyobject(py).map(Bound::unbind);
            PyOSError::new_err((code, text, path.ok()))
        }
        (None, path) => PyOSError::new_err(match path {
            Some(path) => format!("{path}: {}", error.found),
            None => error.found.clone(),
        }),
    }
}
