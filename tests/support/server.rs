//! A raw TCP server on loopback that does to its connections what a test tells it, in real time.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    task::JoinHandle,
};

/// Accepts connections and hands each request to a function of the test. Stops when dropped.
pub struct Server {
    port: u16,
    hits: Arc<AtomicUsize>,
    connections: Arc<AtomicUsize>,
    accepting: JoinHandle<()>,
}

/// One connection on which a request has been read.
pub struct Conversation {
    stream: TcpStream,
    /// The head of the request, as it came.
    pub request: String,
    /// How many requests the server had read before this one.
    pub number: usize,
}

impl Server {
    /// Runs `answer` for each request. It says whether the connection stays open for a next one.
    pub async fn start<F, Fut>(answer: F) -> Self
    where
        F: Fn(Conversation) -> Fut + Clone + Send + Sync + 'static,
        Fut: Future<Output = Option<Conversation>> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let hits = Arc::new(AtomicUsize::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let (counted_hits, counted_connections) = (Arc::clone(&hits), Arc::clone(&connections));
        let accepting = tokio::spawn(async move {
            // Dropped with this task, and every connection with it.
            let mut tasks = tokio::task::JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                counted_connections.fetch_add(1, Ordering::SeqCst);
                let (answer, hits) = (answer.clone(), Arc::clone(&counted_hits));
                tasks.spawn(async move { serve(stream, answer, &hits).await });
            }
        });
        Self { port, hits, connections, accepting }
    }

    /// Answers every request with this status and an empty body.
    pub async fn answering(status: u16) -> Self {
        Self::start(move |conversation| async move { conversation.status(status).await }).await
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}/", self.port)
    }

    /// The key of this server's circuit.
    pub fn key(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Requests that were read.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }

    /// Connections that were accepted.
    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}

async fn serve<F, Fut>(mut stream: TcpStream, answer: F, hits: &AtomicUsize)
where
    F: Fn(Conversation) -> Fut,
    Fut: Future<Output = Option<Conversation>>,
{
    while let Some(request) = read_head(&mut stream).await {
        let number = hits.fetch_add(1, Ordering::SeqCst);
        let conversation = Conversation { stream, request, number };
        match answer(conversation).await {
            Some(conversation) => stream = conversation.stream,
            None => return,
        }
    }
}

/// Everything up to the empty line; none when the peer left before.
async fn read_head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read(&mut byte).await {
            Ok(1) => head.push(byte[0]),
            _ => return None,
        }
    }
    Some(String::from_utf8_lossy(&head).into_owned())
}

impl Conversation {
    /// Answers with an empty body; the connection stays open.
    pub async fn status(self, status: u16) -> Option<Self> {
        self.send(format!("HTTP/1.1 {status} Status\r\ncontent-length: 0\r\n\r\n")).await
    }

    /// Writes these bytes as they are; the connection stays open.
    pub async fn send(mut self, bytes: impl AsRef<[u8]>) -> Option<Self> {
        self.stream.write_all(bytes.as_ref()).await.ok()?;
        Some(self)
    }

    /// Resets the connection instead of closing it.
    pub fn reset(self) -> Option<Self> {
        let _ = self.stream.set_zero_linger();
        None
    }

    /// Waits until the peer has closed the connection.
    pub async fn closed_by_peer(mut self) {
        let mut byte = [0];
        while let Ok(1) = self.stream.read(&mut byte).await {}
    }
}
