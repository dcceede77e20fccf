//! The same crawl with spider as a Rust library: a Website for each host, or one for all of them (`star`).

use std::io::Write;
use std::sync::{Arc, Mutex};

use spider::page::Page;
use spider::tokio;
use spider::tokio::sync::broadcast::error::RecvError;
use spider::website::Website;

#[global_allocator]
static GLOBAL: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Output = Arc<Mutex<std::io::BufWriter<std::fs::File>>>;

fn title(html: &[u8]) -> String {
    let find = |text: &[u8], part: &[u8]| text.windows(part.len()).position(|seen| seen == part);
    find(html, b"<title>")
        .and_then(|start| {
            let rest = &html[start + 7..];
            find(rest, b"</title>").map(|end| String::from_utf8_lossy(&rest[..end]).into_owned())
        })
        .unwrap_or_default()
}

fn store(page: &Page, output: &Output) {
    let row = serde_json::json!({
        "url": page.get_url(), "status": page.status_code.as_u16(), "title": title(page.get_html_bytes_u8()),
    });
    writeln!(output.lock().unwrap(), "{row}").unwrap();
}

async fn crawl(seed: String, everywhere: bool, output: Output) {
    let mut website = Website::new(&seed);
    website.with_respect_robots_txt(false).with_delay(0).with_depth(0).with_concurrency_limit(Some(100));
    if everywhere {
        website.with_external_domains(Some(["*".to_string()].into_iter()));
    }
    // Room for all pages: a subscriber that falls behind would lose the oldest.
    let mut pages = website.subscribe(8192);
    let writer = tokio::spawn(async move {
        loop {
            match pages.recv().await {
                Ok(page) => store(&page, &output),
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => break,
            }
        }
    });
    website.crawl().await;
    website.unsubscribe();
    drop(website);
    writer.await.unwrap();
}

#[tokio::main]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let seeds = std::fs::read_to_string(&arguments[1]).unwrap();
    let output = Arc::new(Mutex::new(std::io::BufWriter::new(std::fs::File::create(&arguments[2]).unwrap())));
    if arguments.get(3).is_some_and(|mode| mode == "star") {
        crawl(seeds.lines().next().unwrap().to_string(), true, output.clone()).await;
    } else {
        let crawls: Vec<_> =
            seeds.lines().map(|seed| tokio::spawn(crawl(seed.to_string(), false, output.clone()))).collect();
        for one in crawls {
            one.await.unwrap();
        }
    }
    output.lock().unwrap().flush().unwrap();
}
