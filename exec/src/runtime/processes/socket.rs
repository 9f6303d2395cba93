//! A connected stream between two processes, of one host or of two, and how one process hands another its end.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};

/// A connected stream. Reads and writes block.
#[derive(Debug)]
pub(in crate::runtime) enum Socket {
    /// Within one host.
    Unix(UnixStream),
    /// Between hosts.
    Tcp(TcpStream),
}

impl Socket {
    /// Both ends of a new stream within this host. It has no name, so it leaves nothing behind.
    pub(in crate::runtime) fn pair() -> io::Result<(Self, Self)> {
        let (one, other) = UnixStream::pair()?;
        Ok((Self::Unix(one), Self::Unix(other)))
    }
    /// A stream to another host; small writes leave at once.
    pub(in crate::runtime) fn tcp(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        Ok(Self::Tcp(stream))
    }
    /// The same stream again, for another thread.
    pub(in crate::runtime) fn again(&self) -> io::Result<Self> {
        Ok(match self {
            Self::Unix(stream) => Self::Unix(stream.try_clone()?),
            Self::Tcp(stream) => Self::Tcp(stream.try_clone()?),
        })
    }
    /// Ends it for both sides: reads and writes under way return.
    pub(in crate::runtime) fn close(&self) {
        // It may have ended before.
        let _ = match self {
            Self::Unix(stream) => stream.shutdown(Shutdown::Both),
            Self::Tcp(stream) => stream.shutdown(Shutdown::Both),
        };
    }
    /// How long a write may block before it is an error; `None` for ever.
    pub(in crate::runtime) fn set_patience(&self, patience: Option<Duration>) -> io::Result<()> {
        match self {
            Self::Unix(stream) => stream.set_write_timeout(patience),
            Self::Tcp(stream) => stream.set_write_timeout(patience),
        }
    }
    /// Hands the other side a stream of this host.
    ///
    /// # Errors
    /// Those of the system, and on a stream between hosts.
    pub(in crate::runtime) fn hand_over(&self, stream: &Self) -> io::Result<()> {
        let (Self::Unix(way), Self::Unix(stream)) = (self, stream) else { return Err(between_hosts()) };
        let handed = [stream.as_fd()];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&handed)), "room for one descriptor");
        let sent = sendmsg(way, &[IoSlice::new(&[0])], &mut control, SendFlags::empty())?;
        if sent == 1 { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
    }
    /// Takes a stream that the other side hands over.
    ///
    /// # Errors
    /// Those of the system; if the other side ended, or sent something else.
    pub(in crate::runtime) fn take_over(&self) -> io::Result<Self> {
        let Self::Unix(way) = self else { return Err(between_hosts()) };
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut byte = [0];
        let got = recvmsg(way, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
        if got.bytes != 1 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut handed: Option<OwnedFd> = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(descriptors) = message {
                handed = handed.or(descriptors.last());
            }
        }
        let handed = handed.ok_or_else(|| io::Error::other("the other side handed nothing over"))?;
        Ok(Self::Unix(UnixStream::from(handed)))
    }
}

fn between_hosts() -> io::Error {
    io::Error::other("a stream between hosts hands nothing over")
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.read(buffer),
            Self::Tcp(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => stream.write(buffer),
            Self::Tcp(stream) => stream.write(buffer),
        }
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
